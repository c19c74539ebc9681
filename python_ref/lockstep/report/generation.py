"""What `generate` shows of its check."""

from __future__ import annotations

from typing import Any

from .findings import cause_text, closing, fault_text


def lines(data: dict[str, Any], quiet: bool = False) -> list[str]:
    """What was found, and the closing line. quiet: no speeds."""
    check = data["check"]
    found = [f"the reference failed its own check {name}: what it says proves nothing" for name in data["pedigree"]["failed"]]
    for fault in check["faults"]:
        found.append(fault_text(fault) if fault["input"] and fault["ratio"] is not None else f"{fault['point']}: {fault['note']}")
        cause = fault["cause"]
        if cause:
            found.append(f"  cause: {cause_text(cause)}")
    found += [flip_text(flip) for flip in check["flips"]]
    found.append(summary(data))
    if not quiet:
        found.append(speed(data))
    found.append(closing(data))
    return found


def summary(data: dict[str, Any]) -> str:
    """`64 tokens, all equal`, or where the first difference is."""
    check, count = data["check"], len(data["tokens"])
    tokens = f"{count} token{'s' * (count != 1)}"
    first = check["first"]
    if data["verdict"] == "identical":
        return f"{tokens}, all equal: the same bits in the logits and states of every step"
    if first is None:
        return f"{tokens}, the same bits in the logits and states of every step"
    ties = sum(flip["tie"] for flip in check["flips"])
    flips = len(check["flips"]) - ties
    away = "" if first["max_abs"] is None else f", |diff| {first['max_abs']:.1e}"
    how = "" if first["verdict"] == "deviates" else f" ({first['verdict']})"  # another bit already deviates from none
    text = f"{tokens}, bits differ first at step {first['step']}, {first['point']}{how}{away}"
    if data["verdict"] == "rounding":
        text += "; nothing but rounding"
    if ties or flips:
        text += f"; other tokens at {ties + flips} steps, {ties} of them ties"
    return text


def flip_text(flip: dict[str, Any]) -> str:
    word = "a tie" if flip["tie"] else "no tie"
    return (
        f"step {flip['step']}: the reference takes {flip['reference']}, the mirror {flip['mirror']}; margin {flip['margin']:.1e}, "
        f"error of the two logits up to {flip['noise']:.1e}: {word}"
    )


def speed(data: dict[str, Any]) -> str:
    """Tokens per second of each side that ran."""
    parts = []
    for side, found in data["speed"].items():
        prefill, decode = (found[f"{name}_tokens_per_second"] for name in ("prefill", "decode"))
        shown = [f"{x:.1f} tokens/s {name}" for x, name in ((prefill, "prefill"), (decode, "decode")) if x is not None]
        parts.append(f"{side} {', '.join(shown)}")
    return "; ".join(parts)
