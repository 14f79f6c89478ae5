"""What AOTInductor has compiled (`model.pt2`): how its tensors are called."""

import inspect
import re
import shutil
import warnings

import numpy as np
import pytest
from python_models import no_reply
from torch_models import fp32, load_module, run

from deployments.backends.backend import Batch, ModelLoadError
from protocol.errors import InvalidArgument
from protocol.infer import InferRequest

torch = pytest.importorskip("torch")


class Nested(torch.nn.Module):
    def forward(self, left, right, options, *, scale, shift):
        return {
            "sum": left + right,
            "rest": left - right,
            "pair": (options["a"] * scale, options["b"] + shift),
            "kept": {"x": options["a"] + 0},
        }


class Constants(torch.nn.Module):
    def forward(self, ids, factor, mask, nothing=None, *, last):
        return ids * factor * mask, last + 1


INPUTS = ("ARGS[0]", "ARGS[1]", "ARGS[2][a]", "ARGS[2][b]", "KWARGS[scale]", "KWARGS[shift]")
OUTPUTS = ("RESULT[sum]", "RESULT[rest]", "RESULT[pair][0]", "RESULT[pair][1]", "RESULT[kept][x]")
SENT = [np.float32([[1, 2], [3, 4]]) * 10**place for place in range(6)]
LEFT, RIGHT, A, B, SCALE, SHIFT = SENT
ANSWERED = [array.tolist() for array in (LEFT + RIGHT, LEFT - RIGHT, A * SCALE, B + SHIFT, A)]


def compile_package(module, path, *args, sizes=None, **kwargs):
    """Compile for any number of rows, or for these sizes."""
    rows = {0: torch.export.Dim("rows", min=1, max=64)}
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    if sizes is None:
        sizes = torch.utils._pytree.tree_map(lambda value: rows if isinstance(value, torch.Tensor) else None, given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=sizes)
        quickly = {"aot_inductor.precompile_headers": False}
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=quickly)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Packages of nested tensors, of a single one, of one row, and of tensors beside constants that share their sizes."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("packages")
    rows = [torch.ones(2, 2) for _ in range(6)]
    nested = ({"a": rows[2], "b": rows[3]}, {"scale": rows[4], "shift": rows[5]})
    compile_package(Nested(), folder / "nested.pt2", *rows[:2], nested[0], **nested[1])
    compile_package(torch.nn.ReLU(), folder / "single.pt2", rows[0])
    compile_package(torch.nn.ReLU(), folder / "fixed.pt2", rows[0][:1], sizes={})
    length = {1: torch.export.Dim("length", max=64)}
    sizes = {"ids": length, "factor": None, "mask": length, "nothing": None, "last": None}
    compile_package(Constants(), folder / "shared.pt2", rows[0], 3.0, rows[1], None, sizes=sizes, last=rows[2])
    return folder


@pytest.fixture
def load(packages, tmp_path):
    loaded = []

    def load(name, inputs, outputs):
        (tmp_path / "net" / "1").mkdir(parents=True)
        shutil.copy(packages / f"{name}.pt2", tmp_path / "net" / "1" / "model.pt2")
        tensors = [each for name in inputs for each in (fp32(name) if isinstance(name, str) else [name])]
        loaded.extend(load_module(tmp_path, None, tensors, fp32(*outputs), file="model.pt2"))
        return loaded[-1]

    yield load
    for instance in loaded:
        instance.close()


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (INPUTS, OUTPUTS),
        ([f"INPUT__{place}" for place in range(6)], [f"OUTPUT__{place}" for place in range(5)]),
        (
            ["ARGS[0]", "x__1", "ARGS[2][a]", "x__3", "KWARGS[scale]", "x__5"],
            ["RESULT[sum]", "y__1", "y__2", "y__3", "y__4"],
        ),
        (["one", "two", "three", "four", "five", "six"], ["a", "b", "c", "d", "e"]),
    ],
    ids=["places", "indices", "both", "order"],
)
def test_tensors_are_called_by_their_place_their_index_or_their_order(load, inputs, outputs):
    instance = load("nested", inputs, outputs)
    sent = dict(zip(inputs, SENT, strict=True))
    assert run(instance, sent) == [dict(zip(outputs, ANSWERED, strict=True))]
    one, other = ({name: rows[part] for name, rows in sent.items()} for part in (slice(0, 1), slice(1, 2)))
    halves = [
        {name: rows[part] for name, rows in zip(outputs, ANSWERED, strict=True)} for part in (slice(0, 1), slice(1, 2))
    ]
    assert run(instance, one, other) == halves


def test_places_may_stand_in_any_order_and_outputs_may_be_left_out(load):
    instance = load("nested", INPUTS[::-1], [OUTPUTS[4], OUTPUTS[0]])
    answered = {OUTPUTS[4]: ANSWERED[4], OUTPUTS[0]: ANSWERED[0]}
    assert run(instance, dict(zip(INPUTS, SENT, strict=True))) == [answered]


@pytest.mark.parametrize("name", ["RESULT", "RESULT[0]"])
def test_a_single_output_may_do_without_brackets(load, name):
    assert run(load("single", ["ARGS[0]"], [name]), {"ARGS[0]": -LEFT}) == [{name: (0 * LEFT).tolist()}]


SHARED = ["ARGS[0]", "ARGS[2]", "KWARGS[last]"]


def test_what_was_exported_as_a_constant_is_no_input(load):
    instance = load("shared", SHARED, ["RESULT[0]", "RESULT[1]"])
    sent = dict(zip(SHARED, (LEFT, RIGHT, A), strict=True))
    assert run(instance, sent) == [{"RESULT[0]": (LEFT * 3 * RIGHT).tolist(), "RESULT[1]": (A + 1).tolist()}]


@pytest.mark.parametrize("short", SHARED[:2])
def test_an_input_that_is_smaller_than_one_that_was_to_be_as_large_is_not_read(load, short):
    instance = load("shared", SHARED, ["RESULT[0]", "RESULT[1]"])
    sent = dict(zip(SHARED, (np.ones((2, 9), np.float32), np.ones((2, 9), np.float32), A), strict=True))
    assert len(run(instance, sent)) == 1
    batch = Batch([InferRequest(sent | {short: np.ones((2, 4), np.float32)}, 2, no_reply)], 2)
    instance.execute(batch)
    [refused] = batch.results
    assert isinstance(refused, InvalidArgument)
    assert re.fullmatch(
        r"dimension 1 of input 'ARGS\[0\]', which has shape \[2, [49]\], must be as large as dimension 1 of input "
        r"'ARGS\[2\]', which has \[2, [49]\]",
        refused.message,
    )


@pytest.mark.parametrize("width", [1, 3])
def test_an_input_of_another_size_than_it_was_exported_for_is_not_read(load, width):
    """The compiled code would read what lies behind a smaller one."""
    instance = load("single", ["x"], ["y"])
    reason = f"input 'x' has shape [1, {width}], and the package was exported for 2 in dimension 1"
    other = {"x": np.ones((1, width), np.float32)}
    batch = Batch([InferRequest(other, 1, no_reply)], 1)
    instance.execute(batch)
    [refused] = batch.results
    assert (type(refused), refused.message) == (InvalidArgument, reason)
    assert run(instance, {"x": LEFT[:1]}, {"x": RIGHT}) == [{"y": LEFT[:1].tolist()}, {"y": RIGHT.tolist()}]


def test_requests_run_alone_where_the_number_of_rows_was_fixed(load):
    instance = load("fixed", ["x"], ["y"])
    sent = [{"x": LEFT[:1]}, {"x": RIGHT[:1]}]
    assert run(instance, *sent) == [{"y": LEFT[:1].tolist()}, {"y": RIGHT[:1].tolist()}]
    answers = run(instance, {"x": LEFT}, sent[0])
    assert answers[0] == (
        InvalidArgument,
        "input 'x' has shape [2, 2], and the package was exported for 1 in dimension 0",
    )
    assert answers[1] == {"y": LEFT[:1].tolist()}


def test_another_type_than_it_was_exported_for_is_refused(load):
    reason = "input 'x' is of type INT8 in the configuration and of FP32 in the package"
    with pytest.raises(ModelLoadError, match=f"^failed to load model 'net': {reason}$"):
        load("single", [("x", "TYPE_INT8", "[-1]")], ["y"])


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "reason"),
    [
        ("single", ["ARGS[1]"], ["RESULT"], r"the package has no tensor ARGS\[1\], it has ARGS\[0\]"),
        ("single", ["ARGS[0]"], ["RESULT[1]"], r"the package has no tensor RESULT\[1\], it has RESULT"),
        ("shared", SHARED, ["RESULT"], r"the package has no tensor RESULT, it has RESULT\[0\], RESULT\[1\]"),
        ("single", ["X__0", "X__9"], ["y"], r"the package has no tensor X__9, it has ARGS\[0\]"),
        ("single", ["X"], ["y", "z"], "the package has no tensor z, it has RESULT"),
    ],
)
def test_names_of_what_is_not_there_are_refused(load, name, inputs, outputs, reason):
    with pytest.raises(ModelLoadError, match=f"^failed to load model 'net': {reason}$"):
        load(name, inputs, outputs)


def test_all_of_its_tensors_are_inputs(load):
    reason = "unable to load model 'net', configuration expects 2 inputs, model provides 3"
    with pytest.raises(ModelLoadError, match=f"^{reason}$"):
        load("shared", SHARED[:2], ["RESULT[0]"])
