"""What the commands' options share."""

MODEL_HELP = "A checkpoint folder or a hub id; the embedded checkpoint if left out."
