"""What a sequence batcher adds to the tensors of a TorchScript module."""

from typing import Tuple  # noqa: UP035, TorchScript knows this name only

import pytest
from python_models import floats
from torch_models import fp32, load_module, run

torch = pytest.importorskip("torch")
Tensor = torch.Tensor

BATCHING = """max_batch_size: 8 sequence_batching {
  control_input { name: "START__3" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
  control_input { name: "END__2" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] } }
  state { input_name: "sum" output_name: "SUM__2" data_type: TYPE_FP32 dims: 1 }
  state { input_name: "count" output_name: "COUNT__1" data_type: TYPE_FP32 dims: 1 }
}"""


class Steps(torch.nn.Module):
    def forward(
        self, x: Tensor, sum: Tensor, end: Tensor, start: Tensor, count: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor]:  # noqa: UP006
        return 10 * start + end, count + 1, sum + x


def test_indices_of_controls_and_of_states_among_the_outputs_hold_beside_names_of_arguments(tmp_path):
    [instance] = load_module(tmp_path, Steps(), fp32("x"), fp32("y"), more=BATCHING)
    inputs = {name: floats(0) for name in ("sum", "count", "END__2")}
    assert run(instance, {"x": floats(5), "START__3": floats(1), **inputs}) == [
        {"y": [[10]], "COUNT__1": [[1]], "SUM__2": [[5]]}
    ]
