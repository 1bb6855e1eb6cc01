"""The JSON fields that scripts rely on, by command: names and types, as version 0.1 printed them."""

import json
from pathlib import Path
from typing import Any

KNOWN: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())

# What has been added since, wherever it is.
ADDED = {
    *("result", "converged", "gap_error"),
    *("train_error", "objective"),  # errors
    *("q_hat_k", "q_hat_v", "free_entropy", "residual", "steps"),
    *("q_hat_k_error", "q_hat_v_error", "free_entropy_error"),
    *("bias", "bias_error", "learned_bias", "seen_deviation"),  # of what is learned
    *("separation", "separation_growth", "separation_growth_error"),  # of heads
    *("gap_with_bias", "gap_with_bias_error", "risk_with_bias", "survival", "worth"),
    *(
        "optimal_converged",
        "lacks",
        "counterfactuals",
        "later_counterfactuals",
        "at_worst",
        "two_heads",
    ),
}


def check(known: Any, found: Any, place: str = "") -> None:
    """Every known field is there with its type, and nothing else but what was added."""
    if isinstance(known, dict):
        assert isinstance(found, dict), place
        assert set(known) <= set(found), (place, set(known) - set(found))
        assert set(found) - set(known) <= ADDED, (place, set(found) - set(known))
        for name, inner in known.items():
            check(inner, found[name], f"{place}.{name}")
    elif isinstance(known, list):
        assert isinstance(found, list), place
        for each in found if known else ():
            check(known[0], each, f"{place}[]")
    else:
        assert _kind(found) == known, (place, found)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "bool"
    return "number" if isinstance(value, int | float) else "string"
