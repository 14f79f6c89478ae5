"""Models that compute for milliseconds, with random weights: a transformer encoder and a ResNet-50, in ONNX."""

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

TOKEN_COUNT = 64
HIDDEN = 256
_VOCABULARY = 1000
_HEADS = 4
_LAYERS = 4
_FEED_FORWARD = 1024

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

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: object) -> str:
        output = output or f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def model(self, inputs: onnx.ValueInfoProto, output: onnx.ValueInfoProto) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, "model", [inputs], [output], self._weights)
        return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


def encoder() -> onnx.ModelProto:
    """Make a transformer encoder of four layers: `TOKENS [batch, 64]` -> `MEAN [batch, 256]`."""
    graph = _Graph()
    hidden = graph.add("Gather", [graph.random(_VOCABULARY, HIDDEN, scale=1.0), "TOKENS"])
    for _ in range(_LAYERS):
        hidden = _normed(graph, graph.add("Add", [hidden, _attention(graph, hidden)]))
        inner = _dense(graph, hidden, HIDDEN, _FEED_FORWARD)
        inner = _dense(graph, graph.add("Relu", [inner]), _FEED_FORWARD, HIDDEN)
        hidden = _normed(graph, graph.add("Add", [hidden, inner]))
    graph.add("ReduceMean", [hidden], "MEAN", axes=[1], keepdims=0)
    return graph.model(
        helper.make_tensor_value_info("TOKENS", TensorProto.INT64, ["batch", TOKEN_COUNT]),
        helper.make_tensor_value_info("MEAN", TensorProto.FLOAT, ["batch", HIDDEN]),
    )


def _dense(graph: _Graph, tensor: str, rows: int, columns: int) -> str:
    product = graph.add("MatMul", [tensor, graph.random(rows, columns, scale=rows**-0.5)])
    return graph.add("Add", [product, graph.weight(np.zeros(columns, np.float32))])


def _normed(graph: _Graph, tensor: str) -> str:
    scale, bias = graph.weight(np.ones(HIDDEN, np.float32)), graph.weight(np.zeros(HIDDEN, np.float32))
    return graph.add("LayerNormalization", [tensor, scale, bias], axis=-1)


def _attention(graph: _Graph, hidden: str) -> str:
    by_head = graph.weight(np.array([0, TOKEN_COUNT, _HEADS, HIDDEN // _HEADS]))
    together = graph.weight(np.array([0, TOKEN_COUNT, HIDDEN]))

    def heads(order: list[int]) -> str:
        return graph.add(
            "Transpose", [graph.add("Reshape", [_dense(graph, hidden, HIDDEN, HIDDEN), by_head])], perm=order
        )

    query, key, value = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    scale = graph.weight(np.array((HIDDEN // _HEADS) ** -0.5, np.float32))
    weights = graph.add("Softmax", [graph.add("Mul", [graph.add("MatMul", [query, key]), scale])], axis=-1)
    mixed = graph.add("Transpose", [graph.add("MatMul", [weights, value])], perm=[0, 2, 1, 3])
    return _dense(graph, graph.add("Reshape", [mixed, together]), HIDDEN, HIDDEN)


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
