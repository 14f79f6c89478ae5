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


OF_SEQUENCES = {
    "arguments' names": (["x", "START__2", "READY__1"], ["x", "ready", "start"], [0, 2, 1]),
    "behind a control": (["x", "START__0"], ["start", "x"], [1, 0]),
    "the order": (["a", "b", "END__3", "START__2"], ["x", "y", "start", "end"], [0, 1, 3, 2]),
    "controls by arguments' names": (["x", "end", "start"], ["start", "x", "end"], [1, 2, 0]),
    "one place for two": (["a", "START__0"], ["x", "y"], [0, 1]),
    "a control without an index": (["a", "START__2", "READY"], ["x", "y", "z"], [0, 1, 2]),
}
"""Names of which some are controls, arguments of `forward`, and where each goes."""


@pytest.mark.parametrize(("names", "forward", "places"), OF_SEQUENCES.values(), ids=OF_SEQUENCES)
def test_controls_go_by_their_index_however_inputs_are_called(names, forward, places):
    controls = [name for name in names if name.startswith(("START", "READY", "END"))]
    arguments = torch_naming.arguments(names, forward, controls=controls)
    assert arguments.positions == dict(zip(names, places, strict=True))


def test_states_go_by_their_index_however_outputs_are_called():
    names = ["y", "B__2", "A__1"]
    assert torch_naming.positions(names, indexed=names[1:]) == {"y": 0, "B__2": 2, "A__1": 1}
