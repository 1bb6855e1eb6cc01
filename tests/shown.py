"""What a page shows against what its code prints: the same words, and the same numbers to the digits shown."""

import re

import pytest

NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def compare(printed: str, shown: str) -> None:
    """Errors, behind ±, may differ in their last digits between machines."""
    printed, shown = map(_without_errors, (printed, shown))
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    assert _numbers(printed) == pytest.approx(_numbers(shown), rel=1e-9)


def _without_errors(text: str) -> str:
    return re.sub(r" ± \S+", "", text)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]
