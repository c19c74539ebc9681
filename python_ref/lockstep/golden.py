"""What makes a trace golden: a reference that may be trusted, what a replay needs beside the recordings, and the replay."""

from __future__ import annotations

import os
from typing import Any

from . import hub, preflight
from . import inputs as given
from .inputs import Forward
from .native import InputError, _core
from .options import Progress, check_gate, check_options
from .reference import Reference
from .verification import Report, Varies


def vouched(
    reference: Reference, source: _core.Mirror, trace: _core.Trace, forwards: list[Forward], points: str, say: Progress
) -> dict[str, Any]:
    """The manifest's object `golden`: {coverage, checks, kernels, len130}; digests are added when it is written.

    reference: the model that `trace` was recorded from; source: its checkpoint.
    raises InputError if its parameters are not the file's, if it fails an invariant, or if its logits never vary
    """
    say("provenance: every parameter against the file")
    leg = _core.Provenance(source, source, reference.dtype)
    for name, parameter in reference.parameters():
        leg.reference_parameter(name, parameter)
    inv_freq = reference.inv_freq()
    if inv_freq is not None:
        leg.reference_inv_freq(inv_freq.cpu())
    leg.bind()
    found = leg.finish()
    if found["verdict"] != "identical":
        tensor = found["differing"][0]["tensor"]
        raise InputError(f"{tensor}: the reference holds other values than the file; a trace of it would prove nothing")
    say("preflight: the reference's own invariants")
    preflight.run(reference, source, forwards, points)
    if reference.pedigree["failed"]:
        raise InputError(
            f"the reference fails its own invariants ({', '.join(reference.pedigree['failed'])}): a trace of it would prove nothing"
        )
    coverage, varies = _core.Coverage(source), Varies()
    past = given.check_all(source, forwards)
    continued = {f.past for f in forwards}
    for f in forwards:
        coverage.add(f.ids, f.positions, f.mask, past[f.name], f.past is not None or f.name in continued)
        logits = trace.tensor(f.name, "lm_head.output")
        if logits is not None:
            varies.add(logits)
    exercised = coverage.finish()
    if exercised["rows"]["distinct_ids"] > 1 and not varies.found:
        raise InputError("the reference's logits never vary: a trace of it would prove nothing")
    about = source.describe()
    len130 = {f.name: f for f in given.default_inputs(about["vocab"], about["mrope"])}["len130"]
    return {
        "coverage": exercised,
        "checks": reference.pedigree["checks"],
        "kernels": reference.pedigree["kernels"],
        "len130": len130.ids[0].tolist(),
    }


def replay(
    model: str | os.PathLike[str] | None,
    golden: str | os.PathLike[str],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    bitwise: bool = False,
    accept: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """`lockstep-native verify MODEL --golden FILE`: is the mirror what Hugging Face was when the trace was recorded?

    raises LoadError or InputError
    """
    stated = atol is not None or rtol is not None
    atol, rtol = 1e-5 if atol is None else atol, 0.0 if rtol is None else rtol
    check_options("float32", "sdpa", "sublayer", atol, rtol, None)
    check_gate(bitwise, accept)
    folder = hub.resolve(model, revision)
    data = _core.replay(
        str(folder), os.fspath(golden), atol if stated else None, rtol, bitwise, accept is not None, progress=progress
    )
    return Report(data, folder)
