import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from repository_loader.onnx_graph import GraphTensor, OnnxFileError, read_onnx_graph
from tests.repository_loader.repositories import BATCHING_ONNX, onnx_bytes, onnx_model
from tests.serving import ROOT


def test_reads_inputs_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_bytes({"A": ["n", 3, 224], "B": [], "C": [-1, 2]}, {"D": ["n", "m"]}))
    graph = read_onnx_graph(str(path))
    assert graph.inputs == (
        GraphTensor("A", "TYPE_FP32", (-1, 3, 224)),
        GraphTensor("B", "TYPE_FP32", ()),
        GraphTensor("C", "TYPE_FP32", (-1, 2)),
    )
    assert graph.outputs == (GraphTensor("D", "TYPE_FP32", (-1, -1)),)


@pytest.mark.parametrize(
    ("onnx_type", "data_type"),
    [
        (TensorProto.FLOAT, "TYPE_FP32"),
        (TensorProto.INT64, "TYPE_INT64"),
        (TensorProto.STRING, "TYPE_STRING"),
        (TensorProto.BOOL, "TYPE_BOOL"),
        (TensorProto.FLOAT16, "TYPE_FP16"),
        (TensorProto.BFLOAT16, "TYPE_BF16"),
        (TensorProto.COMPLEX64, "COMPLEX64"),
        (TensorProto.FLOAT8E4M3FN, "FLOAT8E4M3FN"),
        (TensorProto.INT4, "INT4"),
        (99, "UNDEFINED"),
    ],
)
def test_translates_types(tmp_path: Path, onnx_type: int, data_type: str) -> None:
    (tmp_path / "model.onnx").write_bytes(onnx_bytes({"A": [1]}, {"B": [1]}, onnx_type))
    assert read_onnx_graph(str(tmp_path)).inputs[0].data_type == data_type


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1])), "ONNX_TYPE_SEQUENCE"),
        (
            helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])),
            "ONNX_TYPE_MAP",
        ),
        (helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1])), "ONNX_TYPE_OPTIONAL"),
        (helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [1]), "ONNX_TYPE_SPARSETENSOR"),
    ],
)
def test_names_what_is_no_tensor(tmp_path: Path, value: TypeProto, name: str) -> None:
    model = onnx_model({"A": [1]}, {"B": [1]})
    model.graph.output.append(helper.make_value_info("C", value))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    output = read_onnx_graph(str(tmp_path)).outputs[1]
    assert (output.data_type, output.is_carried) == (name, False)


def test_an_output_may_have_nothing_but_its_name(tmp_path: Path) -> None:
    model = onnx_model({"A": [1]}, {"B": [1]})
    model.graph.output.append(ValueInfoProto(name="C"))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert read_onnx_graph(str(tmp_path)).outputs[1] == GraphTensor("C", "", (), has_shape=False)


def test_tells_that_a_folder_has_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").mkdir()
    (tmp_path / "model.onnx" / "decoder.onnx").write_bytes(BATCHING_ONNX)
    with pytest.raises(OnnxFileError, match=r"folder 'model\.onnx' has no file 'model\.onnx'"):
        read_onnx_graph(str(tmp_path / "model.onnx"))


def test_leaves_out_initializers(tmp_path: Path) -> None:
    model = onnx_model({"A": [1], "W": [2]}, {"B": [1]})
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "W"))
    onnx.save(model, tmp_path / "model.onnx")
    graph = read_onnx_graph(str(tmp_path / "model.onnx"))
    assert [tensor.name for tensor in graph.inputs] == ["A"]
    assert [tensor.name for tensor in graph.optional_inputs] == ["W"]


def test_reads_no_weights(tmp_path: Path) -> None:
    """A sparse file of 3 GiB, all of it one initializer, in front of the inputs."""
    size = 3 << 30
    raw = b"\x4a" + _varint(size)  # raw_data
    tensor = b"\x42\x01W" + raw  # name
    inputs = onnx_model({"A": [1]}, {"B": [1]}).graph.SerializeToString()
    initializer = b"\x2a" + _varint(len(tensor) + size) + tensor
    graph_size = len(initializer) + size + len(inputs)
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(b"\x3a" + _varint(graph_size) + initializer)
        file.seek(size, os.SEEK_CUR)
        file.write(inputs)
    assert [tensor.name for tensor in read_onnx_graph(str(path)).inputs] == ["A"]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("length", range(1, len(BATCHING_ONNX)))
def test_never_misreads_a_file_that_is_cut_off(tmp_path: Path, length: int) -> None:
    """A cut at the border of two top-level fields is a whole message to protobuf as well."""
    path = tmp_path / "model.onnx"
    path.write_bytes(BATCHING_ONNX[:length])
    try:
        graph = read_onnx_graph(str(path))
    except OnnxFileError:
        return
    path.write_bytes(BATCHING_ONNX)
    assert graph == read_onnx_graph(str(path))


BROKEN = {
    "empty": b"",
    "text": b"this is not a model",
    "zeros": bytes(100),
    "a pointer of git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "endless number": b"\xff" * 30,
    "graph longer than the file": b"\x3a\xff\xff\xff\xff\x0f",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_refuses_what_is_no_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(OnnxFileError, match=r"model\.onnx"):
        read_onnx_graph(str(tmp_path))


def test_tells_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OnnxFileError, match="No such file"):
        read_onnx_graph(str(tmp_path / "model.onnx"))


def external(location: str, offset: str = "0", length: str = "4") -> TensorProto:
    tensor = TensorProto(name="W", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_with(tensor: TensorProto, place: str) -> bytes:
    model = onnx_model({"A": [1]}, {"B": [1]})
    node = model.graph.node[0]
    sparse = onnx.SparseTensorProto(values=tensor, dims=[1])
    inner = helper.make_graph([], "inner", [], [], initializer=[tensor])
    if place == "initializer":
        model.graph.initializer.append(tensor)
    elif place == "sparse initializer":
        model.graph.sparse_initializer.append(sparse)
    elif place == "constant":
        node.attribute.append(helper.make_attribute("value", tensor))
    elif place == "sparse constant":
        node.attribute.append(helper.make_attribute("sparse_value", sparse))
    elif place == "branch":
        node.attribute.append(helper.make_attribute("then_branch", inner))
    elif place == "function":
        function = model.functions.add(name="f")
        function.node.add(op_type="Constant").attribute.append(helper.make_attribute("value", tensor))
    elif place == "training":
        model.training_info.add().algorithm.CopyFrom(inner)
    return model.SerializeToString()


@pytest.mark.parametrize(
    "place", ["initializer", "sparse initializer", "constant", "sparse constant", "branch", "function", "training"]
)
@pytest.mark.parametrize(
    "location", ["../secret", "/etc/hostname", "a/../../secret", "..\\secret", "", "link", "hard", "folder/inside"]
)
def test_refuses_external_data_outside_the_folder(tmp_path: Path, location: str, place: str) -> None:
    folder = tmp_path / "1"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "inside").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path / "away")
    (folder / "hard").hardlink_to(tmp_path / "secret")
    (folder / "model.onnx").write_bytes(model_with(external(location), place))
    with pytest.raises(OnnxFileError, match="external data"):
        read_onnx_graph(str(folder))


@pytest.mark.parametrize(
    ("offset", "length", "good"),
    [
        ("0", "8", True),
        ("4", "4", True),
        ("", "", True),
        ("8", "1", False),
        (str(2**40), "4", False),
        ("-1", "1", False),
    ],
)
def test_external_data_must_be_whole(tmp_path: Path, offset: str, length: str, good: bool) -> None:
    (tmp_path / "weights").write_bytes(bytes(8))
    (tmp_path / "model.onnx").write_bytes(model_with(external("weights", offset, length), "initializer"))
    if good:
        assert read_onnx_graph(str(tmp_path)).external_data[0].location == "weights"
    else:
        with pytest.raises(OnnxFileError, match="external data 'weights' ends"):
            read_onnx_graph(str(tmp_path))


@pytest.mark.parametrize("location", ["missing", "*/_ORT_MEM_ADDR_/*"])
def test_refuses_external_data_that_is_missing(tmp_path: Path, location: str) -> None:
    (tmp_path / "model.onnx").write_bytes(model_with(external(location), "initializer"))
    with pytest.raises(OnnxFileError, match="is missing"):
        read_onnx_graph(str(tmp_path))


CUT_WHILE_READ = """
import os, sys
from repository_loader import onnx_graph

class Reader(onnx_graph._Reader):
    def __init__(self, data):
        os.truncate(sys.argv[1], int(sys.argv[2]))
        super().__init__(data)

onnx_graph._Reader = Reader
try:
    onnx_graph.read_onnx_graph(sys.argv[1])
except onnx_graph.OnnxFileError as error:
    print(error, end="")
"""


@pytest.mark.parametrize("left_bytes", [0, 40_000])
def test_a_file_that_is_cut_off_while_it_is_read_ends_no_process(tmp_path: Path, left_bytes: int) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(
        onnx_bytes({f"a rather long name of an input, {number}": [1] for number in range(2000)}, {"B": [1]})
    )
    assert len(read_onnx_graph(str(path)).inputs) == 2000
    command = [sys.executable, "-c", CUT_WHILE_READ, str(path), str(left_bytes)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == "'model.onnx' is not a whole ONNX model: it was cut off while it was read"
