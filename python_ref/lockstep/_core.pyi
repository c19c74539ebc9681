"""Lockstep's C++ core: strict loading, the mirror, comparison. Built from cpp/bind/core.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

torch_version: str

class Error(RuntimeError): ...
class LoadError(Error): ...
class InputError(Error): ...

def families() -> list[str]: ...
def family(folder: str) -> dict[str, Any]:
    """{family, hf_class, layer_types} of a folder's config. raises LoadError"""

def names(folder: str) -> list[dict[str, Any]]:
    """[{source, parameter, shape, dtype, file, status, problem}], sorted by name. raises LoadError"""

def digest(folder: str) -> str:
    """SHA-256 over every tensor's name, dtype, shape and SHA-256, hex. raises LoadError"""

def level_of(point: str) -> str:
    """layer, sublayer or all: the lowest level that holds a capture point."""

def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same shape, dtype and bytes; NaN equal to itself."""

def compare(reference: torch.Tensor, candidate: torch.Tensor, atol: float = 1e-5, rtol: float = 0.0) -> dict[str, Any]:
    """{verdict, elements, bad_elements, max_ulp, max_abs, rel_l2, cosine, worst_index}; not finite is None."""

def compare_logits(reference: torch.Tensor, candidate: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
    """{kl, top1_agreement} over the attended positions of logits [B, T, V]."""

def fingerprint(x: torch.Tensor) -> int:
    """64 bits of shape, dtype and bytes: equal tensors have one."""

def hypotheses() -> list[dict[str, Any]]:
    """[{name, class, parameter}] of everything that may be a cause."""

def bisect(
    folder: str,
    reference: Trace | None,
    candidate: Trace,
    dtype: str,
    attn: str,
    len130: torch.Tensor,
    values: bool,
    causes: bool,
    thorough: bool,
    points: bool,
    without: set[str],
    progress: Callable[[str], None],
    only: set[str] = ...,
) -> dict[str, Any]:
    """{drift, faults, notes, power, projections, points, judged, not_compared, extra, skipped_rows, cost}; power and
    projections with thorough only. raises LoadError, InputError"""

class Trace:
    """Capture point -> tensor for named forwards, in memory or from a file."""

    def __init__(self, dtype: str, attn: str, variant: str, forwards: list[dict[str, Any]]) -> None: ...
    @staticmethod
    def open(path: str) -> Trace:
        """raises LoadError for what is no trace, or of an unknown newer version"""

    def add(self, forward: str, point: str, value: torch.Tensor) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def attn(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def points(self) -> list[str]: ...
    @property
    def manifest(self) -> dict[str, Any]: ...
    @property
    def forwards(self) -> list[dict[str, Any]]: ...
    def promised(self, forward: str, point: str) -> bool: ...
    def tensor(self, forward: str, point: str) -> torch.Tensor | None: ...
    def unpromised(self) -> list[str]: ...
    def repeated(self) -> list[str]: ...
    def check_unchanged(self) -> None: ...

class Truth:
    def __init__(self, folder: str) -> None: ...
    def new_cache(self) -> Cache: ...
    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor | None, mask: torch.Tensor | None, cache: Cache | None, points: str
    ) -> dict[str, torch.Tensor]: ...

class Cache:
    @property
    def past(self) -> int: ...
    def copy(self) -> Cache: ...

class Mirror:
    @staticmethod
    def open(folder: str) -> Mirror: ...
    def bind(self, dtype: str) -> None: ...
    def stream(self, dtype: str) -> None:
        """Each step of a forward gets its weights as it begins, and they go when another begins."""

    def describe(self) -> dict[str, Any]: ...
    def check_unchanged(self) -> None: ...
    def parameter(self, name: str) -> torch.Tensor: ...
    def parameters(self) -> list[str]: ...
    def file_tensor(self, name: str) -> torch.Tensor: ...
    def inv_freq(self) -> torch.Tensor: ...
    def digest(self) -> str: ...
    def digests(self) -> dict[str, str]:
        """SHA-256 of every tensor's bytes in the files, by its name there."""

    def new_cache(self) -> Cache: ...
    def check(
        self, ids: torch.Tensor, positions: torch.Tensor | None, mask: torch.Tensor | None, past: int, cached: bool
    ) -> None: ...
    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        attn: str = "sdpa",
        variant: str = "5.18",
        points: str | None = None,
        hypothesis: tuple[str, str] | None = None,
        passed: Callable[[str], object] | None = None,
        fast: bool = False,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(logits, captures). hypothesis: (name, module path) of a change to this run's arithmetic, for tests. passed: called
        with each point as the forward passes it; then nothing is captured."""

def generation_config(mirror: Mirror) -> dict[str, Any]:
    """{file, stop, pad, max_new_tokens, min_new_tokens, max_length, notes} of the checkpoint. raises LoadError"""

def new_tokens(mirror: Mirror, prompt: int, asked: int | None) -> int:
    """How many tokens may follow a prompt of so many. raises LoadError, InputError"""

def choose(logits: torch.Tensor, stop: list[int], suppressed: bool) -> torch.Tensor:
    """[B, V] -> [B]: the largest in float32, of equal ones the first; no stop token while suppressed."""

class Decoding:
    """A mirror's cached run over one batch, whoever chooses the tokens."""

    def __init__(
        self,
        mirror: Mirror,
        attn: str = "sdpa",
        variant: str = "5.18",
        hypothesis: tuple[str, str] | None = None,
        fast: bool = False,
    ) -> None:
        """fast: weights are read as the file holds them. raises InputError where it holds none in bfloat16"""

    @staticmethod
    def truth(folder: str) -> Decoding:
        """The checkpoint in float64. raises LoadError"""

    def prefill(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """ids [B, T], mask [B, T] of left padding -> logits [B, V] of the last position. raises InputError"""

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B] -> logits [B, V]. raises InputError"""

    @property
    def past(self) -> int: ...
    def states(self) -> dict[str, torch.Tensor]:
        """Caches and states by their capture point. Not to be changed; a later step replaces them."""

    def greedy(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None,
        stop: list[int],
        pad: int | None,
        max_new_tokens: int,
        min_new_tokens: int = 0,
        keep_logits: bool = False,
        on_step: Callable[[int, torch.Tensor], bool | None] | None = None,
    ) -> dict[str, Any]:
        """{tokens, stopped, logits, steps, prefill_seconds, decode_seconds}; on_step(index, tokens [B]) ends it with False.
        raises InputError"""

class Provenance:
    def __init__(self, source: Mirror, mirror: Mirror, dtype: str) -> None: ...
    def compare_files(self) -> None: ...
    def bind(self) -> None: ...
    def lend(self, name: str, value: torch.Tensor) -> None:
        """Gives a streaming mirror the reference's tensor for the step to come, if it was proved equal and still is."""

    def still(self, name: str, value: torch.Tensor) -> None: ...
    def reference_parameter(self, name: str, value: torch.Tensor) -> None: ...
    def reference_inv_freq(self, value: torch.Tensor) -> None: ...
    def finish(self) -> dict[str, Any]: ...

class LockstepForward:
    def __init__(
        self,
        mirror: Mirror,
        variant: str,
        attn: str,
        points: str,
        atol: float,
        rtol: float,
        name: str,
        ids: torch.Tensor,
        positions: torch.Tensor | None,
        mask: torch.Tensor | None,
        cache: Cache | None,
    ) -> None: ...
    def reference(self, point: str, value: torch.Tensor, keep: bool) -> None: ...
    def advance(self, index: int) -> None: ...
    def complete(self) -> None: ...
    def returned_logits(self, logits: torch.Tensor) -> None: ...
    @property
    def mirror_seconds(self) -> float: ...
    def finish(self) -> dict[str, Any]: ...

class Coverage:
    def __init__(self, mirror: Mirror) -> None: ...
    def add(
        self, ids: torch.Tensor, positions: torch.Tensor | None, mask: torch.Tensor | None, past: int, cached: bool
    ) -> None: ...
    def finish(self) -> dict[str, Any]: ...

def unicode_tables_release() -> str:
    """The release of tokenizers that the Unicode tables were taken from."""

def unicode_class(name: str) -> list[tuple[int, int]]:
    """Inclusive ranges of a class such as Lu, Han, space, word or digit; empty if there is no table for it."""

def nfc(text: str) -> str:
    """NFC as Hugging Face's tokenizers know it (Unicode 9)."""

class Tokenizer:
    @staticmethod
    def open(folder: str) -> Tokenizer:
        """raises LoadError naming what is wrong or not implemented"""

    def encode(self, text: bytes, special: bool = True) -> list[int]: ...
    def pieces(self, text: bytes, special: bool = True) -> list[tuple[int, str, int, int]]: ...
    def decode(self, ids: list[int], skip_special: bool = False) -> str: ...
    def id_of(self, token: str) -> int | None: ...
    @property
    def size(self) -> int: ...
    @property
    def bos(self) -> int | None: ...

class TextStream:
    """Ids one by one to text, whole characters only, without special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None: ...
    def add(self, id: int) -> str: ...
    def finish(self) -> str: ...

def parse_size(text: str) -> int:
    """5GB, 500MB, 1GiB or a number of bytes. raises InputError"""

def check_export(
    folder: str, source: str | None = None, digest: str | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """The rows of `lockstep check`; see exporting.check. raises LoadError"""

def check_lines(data: dict[str, Any], shown: int) -> list[str]:
    """The bad rows of a check, at most `shown`, and its closing line."""

def same_inputs(a: Trace, a_name: str, b: Trace, b_name: str) -> None:
    """raises InputError naming the first forward whose ids, positions, mask or past the two have otherwise"""

def compare_traces(a: Trace, a_name: str, b: Trace, b_name: str, atol: float, rtol: float, bitwise: bool) -> dict[str, Any]:
    """The data of `lockstep compare --json` but for `seconds`. raises InputError for traces of different inputs"""

def len130_ids(vocab: int) -> torch.Tensor:
    """ids [1, 130] of the default input len130."""

def settle_rounding(points: list[dict[str, Any]], judged: list[dict[str, Any]], layers: int) -> list[dict[str, Any]]:
    """`points` with floor, ratio, and `rounding` where both sides are within the bound; judged: bisect's `points`."""

def replay(
    folder: str,
    golden: str,
    atol: float | None = None,
    rtol: float = 0.0,
    bitwise: bool = False,
    accept_rounding: bool = False,
    stream: bool = False,
    digests: dict[str, str] | None = None,
    converted: bool = False,
    left_out: set[str] = ...,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """The data of `lockstep-native verify --json`; without atol, on the same machine only the same bits pass. raises LoadError, InputError"""

def replay_lines(data: dict[str, Any]) -> list[str]:
    """The report of a replay that a person reads."""

class Export:
    """An export in progress; its folder of work goes away with it unless finish() has been called."""

    folder: str
    removed: int
    def __init__(
        self, source: Mirror, out: str, dtype: str | None = None, max_shard_size: int | None = None, text_only: bool = False
    ) -> None: ...
    def write(self, progress: Callable[[str], None] | None = None) -> None: ...
    def reread(self, progress: Callable[[str], None] | None = None) -> None: ...
    def finish(self, report: str, producer: dict[str, Any], verification: dict[str, Any]) -> dict[str, Any]:
        """Makes the export appear -> its manifest. raises LoadError"""
    def discard(self) -> None: ...

class Inspection:
    """Collects the captures of one forward of a single sequence and tells of them; cpp/inspect/inspection.h says what."""

    def __init__(self, mirror: Mirror, ids: torch.Tensor, token: int = -1) -> None: ...
    def record(self, point: str, value: torch.Tensor) -> None: ...
    def run(
        self, mirror: Mirror, ids: torch.Tensor, attn: str, variant: str, passed: Callable[[], None] | None = None
    ) -> torch.Tensor:
        """The mirror's forward over a new cache, recorded -> logits [1, 1, V] of the last position."""

    def finish(self, logits: torch.Tensor, target: int | None = None) -> dict[str, Any]:
        """raises InputError naming a capture that never came"""

    def activation(self, layer: int, neuron: int) -> float:
        """down_proj's input of one neuron at the last position. raises InputError"""

    @property
    def last_id(self) -> int: ...
    @property
    def layers(self) -> int: ...

def ablated(
    mirror: Mirror,
    ids: torch.Tensor,
    held: list[tuple[int, int, float, bool]],
    attn: str,
    variant: str,
    passed: Callable[[], None] | None = None,
) -> torch.Tensor:
    """A forward with neurons held, (layer, neuron, value, at the last position alone) -> logits [1, 1, V]."""

def meaning(prompts: list[Inspection]) -> dict[str, Any]:
    """{token, pairs, mean_cosine, part_at_layer} of prompts that end in the same token. raises InputError"""

def next_token(logits: torch.Tensor, target: int) -> dict[str, Any]:
    """{p, top}: the probability of `target`, and the three most probable tokens."""
