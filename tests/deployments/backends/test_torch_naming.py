import pytest

from deployments.backends import torch_naming

POSITIONS = {
    "indices": (["b__1", "a__0"], [1, 0]),
    "brackets, which are a package's": (["ARGS[1]", "ARGS[0]"], [0, 1]),
    "an index behind the first of two": (["x__1__0", "x__0__0"], [0, 1]),
    "text before the last of two": (["x__y__1", "x__y__0"], [0, 1]),
    "one without": (["a__1", "b"], [0, 1]),
    "one twice": (["a__0", "b__0"], [0, 1]),
    "digits of another script": (["a__\u0661", "b__\u0660"], [0, 1]),
}
"""Names, and where each goes: by their indices where all have one, else in this order."""


@pytest.mark.parametrize(("names", "places"), POSITIONS.values(), ids=POSITIONS)
def test_an_index_is_all_that_follows_the_first_two_underscores(names, places):
    assert torch_naming.positions(names) == dict(zip(names, places, strict=True))
