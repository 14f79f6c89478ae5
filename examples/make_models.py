"""Train the example models and write their files into `model_repository`.

Run by hand: `python -m examples.make_models`. The files it makes are part of the repository, so nobody needs to run it
to use them. The same versions of scikit-learn, ONNX and PyTorch make the same models.
"""

import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from torch import nn

from examples.held_out import LABELS, split

REPOSITORY = Path(__file__).parent / "model_repository"
SEED = 0
Layer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Weights `[inputs, outputs]` and bias `[outputs]`."""


def main() -> None:
    images, held_out, digits, held_out_digits = split()

    # The linear model is held back by strong regularisation: two versions should be told apart by their answers.
    linear = LogisticRegression(C=0.01, max_iter=500).fit(images, digits)
    write_onnx(REPOSITORY / "digits/1/model.onnx", [(linear.coef_.T, linear.intercept_)])

    mlp = MLPClassifier((64,), alpha=1e-3, max_iter=400, random_state=SEED).fit(images, digits)
    write_onnx(REPOSITORY / "digits/2/model.onnx", list(zip(mlp.coefs_, mlp.intercepts_, strict=True)))
    (REPOSITORY / "digits/labels.txt").write_text("\n".join(LABELS) + "\n")

    network = train_network(images, digits)
    write_torchscript(REPOSITORY / "digits_torch/1/model.pt", network)

    with torch.inference_mode():
        guesses = network(torch.from_numpy(held_out)).argmax(1).numpy()
    print(f"digits version 1: {linear.score(held_out, held_out_digits):.4f} of the held-out images right")
    print(f"digits version 2: {mlp.score(held_out, held_out_digits):.4f}")
    print(f"digits_torch:     {np.mean(guesses == held_out_digits):.4f}")


def write_onnx(path: Path, layers: list[Layer]) -> None:
    """Write `IMAGE [batch, 64]` -> fully connected layers -> softmax -> `SCORES [batch, 10]`."""
    nodes, weights, tensor = [], [], "IMAGE"
    for index, (weight, bias) in enumerate(layers):
        weights.append(numpy_helper.from_array(np.ascontiguousarray(weight, np.float32), f"weight_{index}"))
        weights.append(numpy_helper.from_array(np.ascontiguousarray(bias, np.float32), f"bias_{index}"))
        nodes.append(helper.make_node("Gemm", [tensor, f"weight_{index}", f"bias_{index}"], [f"sum_{index}"]))
        tensor = f"sum_{index}"
        if index < len(layers) - 1:
            nodes.append(helper.make_node("Relu", [tensor], [f"hidden_{index}"]))
            tensor = f"hidden_{index}"
    nodes.append(helper.make_node("Softmax", [tensor], ["SCORES"], axis=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("SCORES", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def train_network(images: NDArray[np.float32], digits: NDArray[np.int64]) -> nn.Sequential:
    """Train a small convolutional network, `[batch, 64]` -> probabilities `[batch, 10]`."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    network = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
        nn.Softmax(1),
    )
    inputs, targets = torch.from_numpy(images), torch.from_numpy(digits)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(40):
        for rows in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            nn.functional.nll_loss(network(inputs[rows]).clamp_min(1e-9).log(), targets[rows]).backward()
            optimizer.step()
    return network.eval()


class ScriptedNetwork(torch.jit.ScriptModule):  # type: ignore[misc]
    """The trained network for TorchScript.

    Its graph is given as text: TorchScript made from Python code carries the path of that code's file.
    """

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        for number, index in enumerate((1, 4, 7), start=1):
            setattr(self, f"w{number}", nn.Parameter(network[index].weight.detach()))
            setattr(self, f"b{number}", nn.Parameter(network[index].bias.detach()))
        self.define("""
            def forward(self, INPUT__0):
                image = INPUT__0.reshape(-1, 1, 8, 8)
                low = torch.max_pool2d(torch.relu(torch.conv2d(image, self.w1, self.b1, [1, 1], [1, 1])), [2, 2])
                high = torch.relu(torch.conv2d(low, self.w2, self.b2, [1, 1], [1, 1]))
                return torch.softmax(torch.matmul(high.flatten(1), self.w3.t()) + self.b3, 1)
        """)


def write_torchscript(path: Path, network: nn.Sequential) -> None:
    """Write the trained network as TorchScript; the file is the same for the same weights."""
    buffer = io.BytesIO()  # a file's name would go into the archive
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # deprecated in PyTorch, yet what Triton's backend loads
        torch.jit.save(ScriptedNetwork(network).eval(), buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    main()
