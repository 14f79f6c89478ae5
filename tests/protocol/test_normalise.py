import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument
from protocol.limits import Limits
from protocol.normalise import (
    check_bounds,
    client_shape,
    effective_priority,
    model_shape,
    normalise,
)
from protocol.signature import Signature, TensorSpec


def spec(
    name: str, dims: tuple[int, ...], model_dims: tuple[int, ...] | None = None, optional: bool = False
) -> TensorSpec:
    return TensorSpec(name, BY_NAME["FP32"], dims, dims if model_dims is None else model_dims, optional)


def signature(*inputs: TensorSpec, max_batch_size: int = 0, levels: int = 0, default: int = 0) -> Signature:
    return Signature("m", max_batch_size, {tensor.name: tensor for tensor in inputs}, {}, levels, default)


OPTIONAL = signature(spec("A", (1,)), spec("B", (1,), optional=True))


def sent(*names: str) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, "FP32", (1,)) for name in names]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], "
             "but missing required input(s) ['A']. Please provide all required input(s)."),
        (("B",), "Got input(s) ['B'], but missing required input(s) ['A']."),
        (("A", "B", "C"), "between 1 and 2 but got 3 inputs for model 'm'. Got input(s) ['A','B','C'], "
                          "but missing required input(s) ]."),
        (("A", "C"), "unexpected inference input 'C' for model 'm'"),
    ],
    ids=["none", "only-optional", "too-many", "unknown"],
)  # fmt: skip
def test_inputs_are_counted_before_they_are_named(names: tuple[str, ...], text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        normalise(OPTIONAL, sent(*names))
    assert text in raised.value.message


def test_optional_inputs_may_be_left_out() -> None:
    assert normalise(OPTIONAL, sent("A")) == (1, [(1,)])
    assert normalise(OPTIONAL, sent("B", "A")) == (1, [(1,), (1,)])


def test_unknown_names_have_no_request_id() -> None:
    with pytest.raises(InvalidArgument, match=r"^unexpected inference input"):
        normalise(OPTIONAL, sent("C"), "r1")


@pytest.mark.parametrize(
    ("dims", "model_dims", "shape", "expected"),
    [
        ((16,), (4, 4), (2, 16), (2, 4, 4)),
        ((1,), (), (3, 1), (3,)),
        ((-1, 4), (-1, 2, 2), (1, 7, 4), (1, 7, 2, 2)),
        ((-1, 2, -1), (-1, 1, 2, -1), (1, 3, 2, 5), (1, 3, 1, 2, 5)),
        ((4, -1), (2, 2, -1), (1, 4, 0), (1, 2, 2, 0)),
    ],
)
def test_reshape_is_applied_and_undone(
    dims: tuple[int, ...], model_dims: tuple[int, ...], shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    tensor = spec("A", dims, model_dims)
    batching = signature(tensor, max_batch_size=8)
    assert normalise(batching, [("A", "FP32", shape)]) == (shape[0], [expected])
    assert client_shape(tensor, True, expected) == shape
    assert model_shape(tensor, False, shape[1:]) == expected[1:]


@pytest.mark.parametrize("shape", [(1, -1), (-1, 4), (1, -2)])
def test_negative_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="All input dimensions should be specified for input 'A' for model 'm'"):
        normalise(signature(spec("A", (-1,)), max_batch_size=8), [("A", "FP32", shape)])


def test_models_without_batching_get_no_note() -> None:
    with pytest.raises(InvalidArgument) as raised:
        normalise(signature(spec("A", (-1, 4))), [("A", "FP32", (3, 5))], "7")
    assert raised.value.message == (
        "[request id: 7] unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [3,5]. "
    )


def test_an_empty_batch_has_no_rows() -> None:
    assert normalise(signature(spec("A", (-1,)), max_batch_size=8), [("A", "FP32", (0, 4))]) == (0, [(0, 4)])


def test_a_model_without_inputs_has_one_row() -> None:
    assert normalise(signature(max_batch_size=8), []) == (1, [])


def test_an_ensemble_hands_any_priority_on_to_its_steps() -> None:
    config = ModelConfig(name="e", platform="ensemble")
    assert [effective_priority(Signature.from_config(config), asked) for asked in (0, 7)] == [0, 7]


@pytest.mark.parametrize(
    ("levels", "default", "asked", "given"),
    [(0, 0, 5, 0), (3, 2, 0, 2), (3, 2, 1, 1), (3, 2, 3, 3), (3, 2, 4, 2)],
)
def test_priorities_outside_the_levels_become_the_default(levels: int, default: int, asked: int, given: int) -> None:
    assert effective_priority(signature(levels=levels, default=default), asked) == given


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        (Limits(max_tensor_rank=2), (1, 1), (1, 1, 1)),
        (Limits(max_dim=5), (5,), (6,)),
        (Limits(max_element_count=6), (2, 3), (7,)),
        (Limits(max_element_count=6), (2, 0, 3), (0, 7)),
    ],
    ids=["rank", "dim", "elements", "elements beside a 0"],
)
def test_bounds_hold_on_both_sides(limits: Limits, inside: tuple[int, ...], outside: tuple[int, ...]) -> None:
    check_bounds("A", inside, limits)
    with pytest.raises(InvalidArgument, match=r"input 'A' has .* more than"):
        check_bounds("A", outside, limits)
