"""What the commands' options share."""

MODEL_NEEDED = "A checkpoint folder or a hub id."
MODEL_HELP = MODEL_NEEDED.rstrip(".") + "; the embedded checkpoint if left out."
STREAM_HELP = "One layer's weights of each side in memory at a time: for a model bigger than memory. The same bits, and slower."
RAY_HELP = "local, or the address of a Ray cluster: the work is done as tasks there, with --threads threads each (lockstep[ray])."
