"""What PyTorch says of a failure, of which clients get the line that matters."""

from typing import List, Optional, Tuple  # noqa: UP035, TorchScript knows these names only

import numpy as np
import pytest
from python_models import floats
from torch_models import fp32, load_module, run

from deployments.backends.backend import ModelLoadError
from protocol.errors import Internal

torch = pytest.importorskip("torch")
Tensor = torch.Tensor


class Refuse(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            raise ValueError("only negative numbers\nand there is one\n")
        return x


class Many(torch.nn.Module):
    def forward(self, xs: List[Tensor]) -> Tensor:  # noqa: UP006
        return xs[0]


class Pair(torch.nn.Module):
    def forward(self, x: Tuple[Tensor, Tensor]) -> Tensor:  # noqa: UP006
        return x[0]


class Join(torch.nn.Module):
    def forward(self, x: Optional[List[str]] = None) -> List[str]:  # noqa: UP006, UP045
        return [] if x is None else x


class Times(torch.nn.Module):
    def forward(self, x: Tensor, count: int) -> Tensor:
        return x * count


class Custom(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.eagleray_test.twice(x)


def test_the_first_line_of_an_exception_is_told(tmp_path):
    [instance] = load_module(tmp_path, Refuse(), fp32("x"), fp32("y"))
    with pytest.raises(Internal) as raised:
        run(instance, {"x": floats(1)})
    assert raised.value.message == "PyTorch execute failure: builtins.ValueError: only negative numbers"


def test_an_argument_of_another_type_is_named_and_no_value_of_a_client(tmp_path):
    [instance] = load_module(tmp_path, Times(), [("x", "TYPE_FP32", "[1]"), ("count", "TYPE_INT64", "[1]")], fp32("y"))
    with pytest.raises(Internal) as raised:
        run(instance, {"x": floats(1), "count": np.array([[12345, 6]])})
    assert raised.value.message == (
        "PyTorch execute failure: forward() Expected a value of type 'int' for argument 'count' but instead found type "
        "'Tensor'."
    )


ONLY = "Only a single input of type Dict(str, Tensor) or input(s) of type Tensor are supported."


@pytest.mark.parametrize(
    ("module", "datatype", "reason"),
    [
        (Many(), "TYPE_FP32", f"An input of type 'List[Tensor]' was detected in the model. {ONLY}"),
        (Pair(), "TYPE_FP32", f"An input of type 'Tuple[Tensor, Tensor]' was detected in the model. {ONLY}"),
        (Refuse(), "TYPE_STRING", "input 'x' is of type BYTES in the configuration, and forward takes Tensor"),
        (Join(), "TYPE_FP32", "input 'x' is of type FP32 in the configuration, and forward takes Optional[List[str]]"),
    ],
    ids=["list of tensors", "tuple", "strings for a tensor", "a tensor for strings"],
)
def test_an_argument_that_no_input_can_be_fails_the_load(tmp_path, module, datatype, reason):
    with pytest.raises(ModelLoadError) as raised:
        load_module(tmp_path, module, [("x", datatype, "[1]")], fp32("y"))
    assert raised.value.reason == f"failed to load model 'net': {reason}"


def test_an_operator_that_is_not_there_is_named(tmp_path):
    library = torch.library.Library("eagleray_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    load_module(tmp_path, Custom(), fp32("x"), fp32("y"))
    library._destroy()
    with pytest.raises(
        ModelLoadError, match=r"failed to load model 'net': Unknown builtin op: eagleray_test::twice\.$"
    ):
        load_module(tmp_path, None, fp32("x"), fp32("y"))
