"""What `benchmarks.gpu` serves: the models that compute for milliseconds, in ONNX and in TorchScript, for a GPU."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from benchmarks.body import example
from benchmarks.compute_models import BERT_BASE, encoder
from benchmarks.models import COMPUTE, TENSORS, Tensors, config_of, encoder_tensors

MAX_BATCH = 64
PAIR = "_x2"
"""Ends the name of a model with two instances."""
BERT = "bert"
BERT_TORCH = "bert_torch"
GPU_TENSORS = {
    "resnet50": TENSORS["resnet50"],
    BERT: encoder_tensors(BERT_BASE),
    BERT_TORCH: Tensors("INPUT__0", (BERT_BASE.token_count,), "OUTPUT__0", (BERT_BASE.hidden,), "INT64"),
    "encoder": TENSORS["encoder"],
}

# Convolutions of ONNX Runtime, and that all models have room on one card, whatever its memory.
_CUDNN = 'parameters {{ key: "cudnn_conv_algo_search" value: {{ string_value: "{number}" }} }}\n'
_SHARE = 'parameters { key: "eagleray.num_gpus" value: { string_value: "0.1" } }\n'
CUDNN = {"exhaustive": "0", "heuristic": "1", "default": "2"}


@dataclass(frozen=True, slots=True)
class Served:
    """A model under the name that it is served by."""

    model: str
    instances: int

    @property
    def name(self) -> str:
        return self.model + (PAIR if self.instances > 1 else "")

    @property
    def tensors(self) -> Tensors:
        return GPU_TENSORS[self.model]

    def file(self, repository: Path) -> Path:
        return repository / self.name / "1" / ("model.pt" if self.model == BERT_TORCH else "model.onnx")


def write_repository(repository: Path, models: list[Served], device: str, cudnn: str) -> None:
    """Write the models; those with two instances have the same file."""
    written: dict[str, Path] = {}
    for served in models:
        file = served.file(repository)
        file.parent.mkdir(parents=True)
        if served.model in written:
            os.link(written[served.model], file)
        elif served.model == BERT_TORCH:
            write_bert_torch(file)
        else:
            onnx.save(encoder(BERT_BASE) if served.model == BERT else COMPUTE[served.model](), file)
        written[served.model] = file
        (repository / served.name / "config.pbtxt").write_text(config(served, device, cudnn))


def config(served: Served, device: str, cudnn: str) -> str:
    """Return the model's configuration; one instance on a GPU is what a model has that says nothing."""
    torch = served.model == BERT_TORCH
    rest = "dynamic_batching { }\n"
    if device == "cpu" or served.instances > 1:
        rest += f"instance_group [ {{ kind: KIND_{device.upper()} count: {served.instances} }} ]\n"
    if device == "gpu":
        rest += _SHARE if torch else _SHARE + _CUDNN.format(number=CUDNN[cudnn])
    kind = 'backend: "pytorch"' if torch else 'backend: "onnxruntime"'
    return config_of(served.name, kind, MAX_BATCH, served.tensors, rest)


def write_bert_torch(file: Path) -> None:
    """Trace a transformer encoder of the same sizes as the one in ONNX: tokens [batch, 128] -> [batch, 768]."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    token_count, width, head_count = BERT_BASE.token_count, BERT_BASE.hidden, BERT_BASE.head_count

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.joined, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, hidden: Any) -> Any:
            split = self.joined(hidden).view(-1, token_count, 3, head_count, width // head_count).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(split[0], split[1], split[2])
            hidden = self.first(hidden + self.mixed(mixed.transpose(1, 2).reshape(-1, token_count, width)))
            return self.second(hidden + self.narrow(torch.relu(self.wide(hidden))))

    class Encoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(BERT_BASE.vocabulary, width)
            self.layers = nn.ModuleList(Layer() for _ in range(BERT_BASE.layer_count))

        def forward(self, tokens: Any) -> Any:
            hidden = self.embedding(tokens)
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden.mean(1)

    with torch.inference_mode():
        tokens = torch.from_numpy(example(GPU_TENSORS[BERT_TORCH], 2).copy())
        torch.jit.trace(Encoder().eval(), tokens).save(str(file))


def right_answer(served: Served, repository: Path) -> NDArray[np.float32]:
    """Return the answer to the example, computed on the CPU."""
    file, rows = served.file(repository), example(served.tensors)
    answer: NDArray[np.float32]
    if file.suffix == ".pt":
        import torch

        with torch.inference_mode():
            answer = torch.jit.load(str(file), map_location="cpu")(torch.from_numpy(rows.copy())).numpy()
    else:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (answer,) = session.run(None, {served.tensors.input: rows})
    return answer
