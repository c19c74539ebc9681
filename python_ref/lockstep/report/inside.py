"""What `lockstep inspect` shows on the terminal: sparklines of the stream and the gates, and what comes next."""

from __future__ import annotations

import math
from typing import Any

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float]) -> str:
    """One block per value, from the least to the greatest; by the logarithm where all are positive and far apart."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return "-" * len(values)
    low, high = min(known), max(known)
    logarithmic = low > 0 and high / low > 4

    def block(value: float | None) -> str:
        if value is None:
            return "-"
        if low == high:
            return BLOCKS[3]
        share = math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
        return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]

    return "".join(block(v) for v in values)


def lines(data: dict[str, Any]) -> list[str]:
    """The summary, one closing line at the end."""
    text: list[str] = []
    for model in data["models"]:
        kinds = ", ".join(f"{model['layer_types'].count(kind)} {kind}" for kind in sorted(set(model["layer_types"])))
        text.append(f"{model['name']}: {model['family']}, {len(model['layer_types'])} layers ({kinds})")
        for number, prompt in enumerate(model["prompts"], 1):
            text += _prompt(model, number, prompt)
        for told in model["meaning"]:
            at = told["part_at_layer"]
            cosines = told["mean_cosine"]
            text.append(
                f"  prompts {', '.join(str(i + 1) for i in told['prompts'])} end in {_word(model, told['token'])}: mean cosine "
                f"{_number(cosines[0], '.6g')} at the embedding, {_number(cosines[-1])} at the end; "
                + ("they never part" if at is None else f"they part at layer {at}")
            )
    text.append(closing(data))
    return text


def closing(data: dict[str, Any]) -> str:
    count = sum(len(model["prompts"]) for model in data["models"])
    holds = {"agrees": "the sum check holds", "deviates": "the sum check FAILS", "non_finite": "something is not finite"}
    word = {0: "passes", 1: "fails", 2: "could not judge"}[data["exit_code"]]
    failed = sorted({name for model in data["models"] for name in model["pedigree"]["failed"]})
    reference = f" (reference: {', '.join(failed)})" if failed else ""
    return f"{word}{reference}: {count} prompt{'s' * (count != 1)}, {holds[data['verdict']]}, in {data['seconds']['total']:.1f} s"


def _prompt(model: dict[str, Any], number: int, prompt: dict[str, Any]) -> list[str]:
    norms = [layer["captures"][6]["all"]["l2"] for layer in prompt["layers"]]
    text = [f"  prompt {number}: {_shortened(prompt['text'])}{len(prompt['ids'])} tokens"]
    text.append(f"    residual norms  {sparkline(norms)}  {_number(norms[0])} to {_number(norms[-1])}")
    gates = [layer["mixer"]["gate"]["mean"] for layer in prompt["layers"] if "gate" in layer["mixer"]]
    if gates:
        known = [gate for gate in gates if gate is not None] or [None]
        text.append(f"    mean gates      {sparkline(gates)}  {_number(min(known), '.3f')} to {_number(max(known), '.3f')}")
    top = "  ".join(f"{_word(model, t['id'])} {_number(t['p'], '.1%')}" for t in prompt["next"][:5])
    text.append(f"    next            {top}")
    for a in prompt["ablations"]:
        held = f"at {_number(a['value'], '.4g')} of prompt {a['from_prompt']}" if a["from_prompt"] else "at zero"
        text.append(
            f"    ablation        neuron {a['layer']}:{a['neuron']} {held}: p of {_word(model, prompt['target'])} "
            f"{_number(a['before']['p'], '.2%')} to {_number(a['after']['p'], '.2%')}"
        )
    check = prompt["sum_check"]
    sign = "holds" if check["passes"] else "FAILS"
    text.append(f"    sum check       {sign}: off by {_number(check['error'])} of {_number(check['bound'])} allowed")
    return text


def _number(x: float | None, form: str = ".3g") -> str:
    """What is not finite is null in the data, and a dash here."""
    return "-" if x is None else format(x, form)


def _word(model: dict[str, Any], token: int) -> str:
    return repr(model["vocabulary"].get(str(token), f"[{token}]"))


def _shortened(text: str | None, limit: int = 60) -> str:
    if text is None:
        return ""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…") + ", "
