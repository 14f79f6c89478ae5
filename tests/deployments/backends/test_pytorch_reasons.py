"""What PyTorch says of a failure, of which clients get the line that matters."""

from typing import List  # noqa: UP035, TorchScript knows this name only

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


class Custom(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.eagleray_test.twice(x)


def test_the_first_line_of_an_exception_is_told(tmp_path):
    [instance] = load_module(tmp_path, Refuse(), fp32("x"), fp32("y"))
    with pytest.raises(Internal) as raised:
        run(instance, {"x": floats(1)})
    assert raised.value.message == "PyTorch execute failure: builtins.ValueError: only negative numbers"


@pytest.mark.parametrize(
    ("module", "datatype", "value", "told"),
    [
        (Many(), "TYPE_FP32", 1.5, "'List[Tensor]' for argument 'xs' but instead found type 'Tensor'."),
        (Refuse(), "TYPE_STRING", b"private", "'Tensor' for argument 'x' but instead found type 'list'."),
    ],
    ids=["a tensor for a list of tensors", "strings for a tensor"],
)
def test_an_argument_of_another_type_is_named_and_no_value_of_a_client(tmp_path, module, datatype, value, told):
    [instance] = load_module(tmp_path, module, [("x", datatype, "[1]")], fp32("y"))
    with pytest.raises(Internal) as raised:
        run(instance, {"x": np.array([[value]], object if datatype == "TYPE_STRING" else np.float32)})
    assert raised.value.message == f"PyTorch execute failure: forward() Expected a value of type {told}"


def test_an_operator_that_is_not_there_is_named(tmp_path):
    library = torch.library.Library("eagleray_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    load_module(tmp_path, Custom(), fp32("x"), fp32("y"))
    library._destroy()
    with pytest.raises(
        ModelLoadError, match=r"failed to load model 'net': Unknown builtin op: eagleray_test::twice\.$"
    ):
        load_module(tmp_path, None, fp32("x"), fp32("y"))
