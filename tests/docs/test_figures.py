"""The figures of `docs/behaviour.md` are those that the product goes by."""

import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel

from tests.docs.figures import FIGURES
from tests.docs.test_behaviour_page import SENTENCES

WORDS = {
    "a second": 1.0,
    "every second": 1.0,
    "about a second": 1.0,
    "once a second": 1.0,
    "half a second": 0.5,
    "five minutes": 300.0,
    "ten minutes": 600.0,
    "two at a time": 2,
    "two a second": 2,
    "three at most": 3,
    "four times": 4,
    "four cores": 4,
    "ten": 10,
    "A fifth": 1 / 5,
    "a twelfth": 12,
    "999 others": 1000,  # and the one that they are others to
    "2³¹−1": 2**31 - 1,
}
NUMBER = re.compile(r"([\d.,]+)(?: (\S+).*)?")
UNITS = {"Mi": 1 << 20, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1.0, "ms": 1e-3}
"""Any other word says what is counted."""
ENDS = {"_ns": 1e-9, "_us": 1e-6, "_ms": 1e-3}
CASES = [(key, figure, name) for key, figures in FIGURES.items() for figure, name in figures]


def spelled(figure: str) -> float:
    """The value of a figure, in bytes, seconds or pieces."""
    if figure in WORDS:
        return WORDS[figure]
    found = NUMBER.fullmatch(figure)
    assert found is not None, f"'{figure}' is no figure"
    return float(found[1].replace(",", "")) * UNITS.get(found[2] or "", 1)


def gone_by(name: str) -> float:
    """The value of a constant, or the default of a class's field."""
    path, _, last = name.rpartition(".")
    module, _, cls = path.rpartition(".")
    value: Any
    if not cls[:1].isupper():
        value = getattr(import_module(path), last)
    else:
        owner = getattr(import_module(module), cls)
        if issubclass(owner, BaseModel):
            value = owner.model_fields[last].default
        else:
            assert is_dataclass(owner)
            value = next(field.default for field in fields(owner) if field.name == last)
    return float(value) * next((unit for end, unit in ENDS.items() if last.lower().endswith(end)), 1)


@pytest.mark.parametrize(("key", "figure", "name"), CASES, ids=[f"{name}-{key}" for key, _, name in CASES])
def test_a_figure_is_the_one_that_the_product_goes_by(key: str, figure: str, name: str) -> None:
    (sentence,) = (each for each in SENTENCES if key in each)
    assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d|,\d)", sentence), f"'{figure}' is not in: {sentence}"
    assert gone_by(name) == pytest.approx(spelled(figure)), f"{name} is not what the page says: {sentence}"
