"""Models that compute for milliseconds, with random weights: transformer encoders and a ResNet-50, in ONNX."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True, slots=True)
class EncoderSizes:
    """Of a transformer encoder; the inner layers are four times as wide as `hidden`."""

    token_count: int
    hidden: int
    head_count: int
    layer_count: int
    vocabulary: int = 1000


SMALL = EncoderSizes(token_count=64, hidden=256, head_count=4, layer_count=4)
BERT_BASE = EncoderSizes(token_count=128, hidden=768, head_count=12, layer_count=12, vocabulary=30522)

CLASS_COUNT = 1000
# Of each stage: blocks, channels inside, channels out, stride.
_STAGES = ((3, 64, 256, 1), (4, 128, 512, 2), (6, 256, 1024, 2), (3, 512, 2048, 2))


class _Graph:
    """Collects nodes and weights; a tensor is its name."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def weight(self, array: NDArray[np.generic]) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def random(self, *shape: int, scale: float) -> str:
        return self.weight((self._random.standard_normal(shape) * scale).astype(np.float32))

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def model(self, inputs: onnx.ValueInfoProto, output: onnx.ValueInfoProto) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, "model", [inputs], [output], self._weights)
        return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


def encoder(sizes: EncoderSizes = SMALL) -> onnx.ModelProto:
    """Make a transformer encoder: `TOKENS [batch, token_count]` -> `MEAN [batch, hidden]`."""
    graph = _Graph()
    width = sizes.hidden
    hidden = graph.add("Gather", [graph.random(sizes.vocabulary, width, scale=1.0), "TOKENS"])
    for _ in range(sizes.layer_count):
        hidden = _normed(graph, graph.add("Add", [hidden, _attention(graph, hidden, sizes)]), width)
        inner = _dense(graph, hidden, width, 4 * width)
        inner = _dense(graph, graph.add("Relu", [inner]), 4 * width, width)
        hidden = _normed(graph, graph.add("Add", [hidden, inner]), width)
    graph.add("ReduceMean", [hidden], "MEAN", axes=[1], keepdims=0)
    return graph.model(
        helper.make_tensor_value_info("TOKENS", TensorProto.INT64, ["batch", sizes.token_count]),
        helper.make_tensor_value_info("MEAN", TensorProto.FLOAT, ["batch", width]),
    )


def _dense(graph: _Graph, tensor: str, rows: int, columns: int) -> str:
    product = graph.add("MatMul", [tensor, graph.random(rows, columns, scale=rows**-0.5)])
    return graph.add("Add", [product, graph.weight(np.zeros(columns, np.float32))])


def _normed(graph: _Graph, tensor: str, width: int) -> str:
    scale, bias = graph.weight(np.ones(width, np.float32)), graph.weight(np.zeros(width, np.float32))
    return graph.add("LayerNormalization", [tensor, scale, bias], axis=-1)


def _attention(graph: _Graph, hidden: str, sizes: EncoderSizes) -> str:
    width, depth = sizes.hidden, sizes.hidden // sizes.head_count
    by_head = graph.weight(np.array([0, sizes.token_count, sizes.head_count, depth]))
    together = graph.weight(np.array([0, sizes.token_count, width]))

    def heads(order: list[int]) -> str:
        return graph.add(
            "Transpose", [graph.add("Reshape", [_dense(graph, hidden, width, width), by_head])], perm=order
        )

    query, key, value = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    scale = graph.weight(np.array(depth**-0.5, np.float32))
    weights = graph.add("Softmax", [graph.add("Mul", [graph.add("MatMul", [query, key]), scale])], axis=-1)
    mixed = graph.add("Transpose", [graph.add("MatMul", [weights, value])], perm=[0, 2, 1, 3])
    return _dense(graph, graph.add("Reshape", [mixed, together]), width, width)


def resnet50() -> onnx.ModelProto:
    """Make a ResNet-50, batch normalisation folded: `IMAGE [batch, 3, 224, 224]` -> `SCORES [batch, 1000]`."""
    graph = _Graph()
    tensor = graph.add("Relu", [_convolution(graph, "IMAGE", 3, 64, 7, 2)])
    tensor = graph.add("MaxPool", [tensor], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for blocks, inside, outside, first_stride in _STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            inner = graph.add("Relu", [_convolution(graph, tensor, channels, inside, 1, 1)])
            inner = graph.add("Relu", [_convolution(graph, inner, inside, inside, 3, stride)])
            inner = _convolution(graph, inner, inside, outside, 1, 1, gain=0.2)
            if block == 0:
                tensor = _convolution(graph, tensor, channels, outside, 1, stride)
            tensor = graph.add("Relu", [graph.add("Add", [tensor, inner])])
            channels = outside
    pooled = graph.add("Flatten", [graph.add("GlobalAveragePool", [tensor])])
    weights = graph.random(channels, CLASS_COUNT, scale=channels**-0.5)
    graph.add("Gemm", [pooled, weights, graph.weight(np.zeros(CLASS_COUNT, np.float32))], "SCORES")
    return graph.model(
        helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, ["batch", 3, 224, 224]),
        helper.make_tensor_value_info("SCORES", TensorProto.FLOAT, ["batch", CLASS_COUNT]),
    )


def _convolution(
    graph: _Graph, tensor: str, rows: int, columns: int, kernel: int, stride: int, gain: float = 1.0
) -> str:
    scale = gain * (2 / (rows * kernel * kernel)) ** 0.5
    weights = graph.random(columns, rows, kernel, kernel, scale=scale)
    bias = graph.weight(np.zeros(columns, np.float32))
    return graph.add(
        "Conv", [tensor, weights, bias], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4
    )
