"""What models import as `triton_python_backend_utils`."""

import asyncio
import struct

import numpy as np
import pytest

from deployments.backends.python import metric, pb_utils
from deployments.backends.python.pb_utils import Tensor, TritonModelException

BFLOAT16_ONES = np.full((2, 3), 0x3F80, np.uint16)


def test_tensor_keeps_name_shape_and_type():
    tensor = Tensor("T", np.ones((2, 3), np.int8))
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("T", [2, 3], 6, True)


def test_tensor_is_contiguous_and_shares_memory_when_it_can():
    array = np.arange(6).reshape(2, 3)
    assert Tensor("T", array).as_numpy() is array
    assert Tensor("T", array.T).as_numpy().flags.c_contiguous
    assert Tensor("T", array.T).as_numpy().tolist() == array.T.tolist()


def test_a_tensor_from_dlpack_that_is_not_contiguous_is_copied():
    torch = pytest.importorskip("torch")
    source = torch.arange(6, dtype=torch.int32).reshape(2, 3).T
    for tensor in (Tensor.from_dlpack("T", source), Tensor.from_dlpack("T", source.__dlpack__())):
        assert tensor.as_numpy().flags.c_contiguous
        assert tensor.as_numpy().tolist() == source.tolist()


def test_tensor_takes_only_arrays():
    with pytest.raises(TypeError, match=r"Tensor 'T' needs a numpy\.ndarray, found type '<class 'list'>'"):
        Tensor("T", [1, 2])


@pytest.mark.parametrize("writeable", [True, False])
def test_numpy_and_dlpack_share_one_tensor(writeable):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array.flags.writeable = writeable
    tensor = Tensor("T", array)
    assert np.from_dlpack(tensor).tolist() == array.tolist()
    for source in (tensor, tensor.to_dlpack(), array.copy()):
        copy = Tensor.from_dlpack("C", source)
        assert (copy.name(), copy.as_numpy().tolist(), copy.triton_dtype()) == ("C", array.tolist(), 11)


def test_a_tensor_from_dlpack_is_the_memory_it_came_from_and_may_be_written_to():
    source = np.zeros((2, 3), np.float32)
    tensor = Tensor.from_dlpack("T", source)
    tensor.as_numpy()[0, 1] = 5
    again = Tensor.from_dlpack("U", tensor.to_dlpack())
    again.as_numpy()[1, 0] = 6
    assert (source[0, 1], source[1, 0]) == (5, 6)
    del tensor, again
    assert source.sum() == 11


def test_strings_have_no_dlpack():
    with pytest.raises(TritonModelException, match="string tensors"):
        Tensor("T", np.array([b"a"], object)).to_dlpack()


def test_bfloat16_goes_through_dlpack_and_not_through_numpy():
    torch = pytest.importorskip("torch")
    tensor = Tensor.from_dlpack("T", torch.ones((2, 3), dtype=torch.bfloat16))
    assert (tensor.triton_dtype(), tensor.shape()) == (14, [2, 3])
    assert tensor.host_array(bfloat16=True).tolist() == BFLOAT16_ONES.tolist()
    assert torch.equal(torch.from_dlpack(tensor), torch.ones((2, 3), dtype=torch.bfloat16))
    assert torch.equal(torch.from_dlpack(tensor.to_dlpack()), torch.ones((2, 3), dtype=torch.bfloat16))
    with pytest.raises(TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"):
        tensor.as_numpy()
    with pytest.raises(TritonModelException, match="is BF16"):
        tensor.host_array(bfloat16=False)


@pytest.mark.parametrize(
    ("name", "number", "numpy_type"),
    [("TYPE_FP32", 11, np.float32), ("TYPE_BOOL", 1, np.bool_), ("TYPE_STRING", 13, np.object_)],
)
def test_types_translate(name, number, numpy_type):
    assert pb_utils.triton_string_to_numpy(name) is numpy_type
    assert pb_utils.triton_to_numpy_type(number) is numpy_type
    assert pb_utils.numpy_to_triton_type(numpy_type) == number


def test_types_without_a_counterpart_are_none():
    assert pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
    assert pb_utils.numpy_to_triton_type(np.dtype("datetime64[s]")) is None


def test_text_may_be_bytes(caplog):
    request = pb_utils.InferenceRequest(
        request_id=b"1",
        model_name="grüß".encode(),
        inputs=[Tensor(b"X", np.ones(1)), Tensor.from_dlpack(b"Z", np.ones(1))],
        requested_output_names=[b"Y"],
    )
    assert (request.request_id(), request.model_name(), request.requested_output_names()) == ("1", "grüß", {"Y"})
    assert [tensor.name() for tensor in request.inputs()] == ["X", "Z"]
    assert pb_utils.TritonError(b"no").message() == "no"
    gauge = pb_utils.MetricFamily(b"family_of_bytes", b"", metric.GAUGE).Metric()
    gauge.set(2)
    assert pb_utils.MetricFamily("family_of_bytes", "", metric.GAUGE).Metric().value() == 2
    caplog.set_level("INFO", "eagleray.python_model")
    pb_utils.Logger.log_info(b"said")
    assert caplog.messages == ["said"]


def test_codes_of_errors_have_names():
    assert pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND).code().name == "NOT_FOUND"


def test_byte_tensors_survive_serialization():
    array = np.array([[b"a\0", "grüß"], [b"", 7]], object)
    encoded = pb_utils.serialize_byte_tensor(array)
    assert encoded == b"\2\0\0\0a\0\6\0\0\0gr\xc3\xbc\xc3\x9f\0\0\0\0\1\0\0\x007"
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == [b"a\0", "grüß".encode(), b"", b"7"]
    with pytest.raises(TritonModelException, match="invalid datatype"):
        pb_utils.serialize_byte_tensor(np.ones(2))


@pytest.mark.parametrize("cut", [b"\5\0\0\0a", b"\1\0\0\0a\1\0\0\0", b"\1\0\0\0a\1\0"])
def test_bytes_that_end_within_an_element_are_no_tensor(cut):
    with pytest.raises(struct.error):
        pb_utils.deserialize_bytes_tensor(cut)


def test_configuration_helpers_read_parsed_json():
    config = {"input": [{"name": "X", "dims": [1]}], "output": [], "model_transaction_policy": {"decoupled": True}}
    assert pb_utils.get_input_config_by_name(config, "X") == {"name": "X", "dims": [1]}
    assert pb_utils.get_output_config_by_name(config, "X") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config)
    assert not pb_utils.using_decoupled_model_transaction_policy({})


def test_response_holds_tensors_or_an_error():
    response = pb_utils.InferenceResponse([Tensor("A", np.ones(1))])
    assert pb_utils.get_output_tensor_by_name(response, "A").name() == "A"
    assert pb_utils.get_output_tensor_by_name(response, "B") is None
    assert (response.has_error(), response.error(), response.parameters()) == (False, None, "{}")
    failed = pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND))
    assert (failed.has_error(), failed.error().message(), failed.error().code()) == (True, "no", 2)
    with pytest.raises(TritonModelException, match="Output tensor for inference response should not be empty"):
        pb_utils.InferenceResponse([None])


def test_request_for_another_model_keeps_its_arguments():
    request = pb_utils.InferenceRequest(
        request_id="1",
        correlation_id="c",
        inputs=[Tensor("X", np.ones(1))],
        requested_output_names=["Y"],
        model_name="other",
        model_version=2,
        flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        timeout=5,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1),
        trace=None,
        parameters={"k": "é", "n": 1},
    )
    assert pb_utils.get_input_tensor_by_name(request, "X").name() == "X"
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("1", "c", 1, 5)
    assert (request.requested_output_names(), request.parameters()) == ({"Y"}, '{"k":"é","n":1}')
    for call in (request.exec, lambda: asyncio.run(request.async_exec())):
        with pytest.raises(TritonModelException, match="BLS is only supported during"):
            call()
    with pytest.raises(
        TritonModelException, match="Input tensor for request with id '7' and model name 'm' should not"
    ):
        pb_utils.InferenceRequest(request_id="7", model_name="m", inputs=[None], requested_output_names=[])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"inputs": None}, TypeError),
        ({"requested_output_names": None}, TypeError),
        ({"requested_output_names": [None]}, TypeError),
        ({"requested_output_names": "Y"}, TypeError),
        ({"model_name": None}, TypeError),
        ({"request_id": None}, TypeError),
        ({"model_version": None}, TypeError),
        ({"flags": None}, TypeError),
        ({"timeout": 1.5}, TypeError),
        ({"timeout": -1}, TypeError),
        ({"flags": 1 << 32}, TypeError),
        ({"inputs": ["X"]}, TypeError),
        ({"preferred_memory": pb_utils.TRITONSERVER_MEMORY_GPU}, TypeError),
        ({"trace": "a trace"}, TypeError),
        ({"correlation_id": None}, TritonModelException),
        ({"parameters": ["a"]}, TritonModelException),
        ({"parameters": {1: "a"}}, TritonModelException),
        ({"parameters": {"a": 1.5}}, TritonModelException),
        ({"parameters": {"a": 1 << 64}}, TritonModelException),
    ],
    ids=str,
)
def test_a_request_is_not_made_of_wrong_arguments(arguments, error):
    right = {"inputs": [], "requested_output_names": [], "model_name": "m", "timeout": np.uint64(5)}
    assert type(pb_utils.InferenceRequest(**right).timeout()) is int
    with pytest.raises(error):
        pb_utils.InferenceRequest(**{**right, **arguments})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Tensor(None, np.ones(1)), TypeError),
        (lambda: Tensor("", np.ones(1)), TritonModelException),
        (lambda: Tensor("", None), TypeError),
        (lambda: Tensor.from_dlpack("", np.ones(1)), TritonModelException),
        (lambda: Tensor.from_dlpack("T", None), TritonModelException),
        (lambda: pb_utils.InferenceResponse(None), TypeError),
        (lambda: pb_utils.InferenceResponse([np.ones(2)]), TypeError),
        (lambda: pb_utils.InferenceResponse([], parameters=["a"]), TritonModelException),
        (lambda: pb_utils.InferenceResponse([], parameters={"a": -(1 << 63) - 1}), TritonModelException),
        (lambda: pb_utils.Logger.log("text", None), TypeError),
        (lambda: pb_utils.Logger.log("text", 1), TypeError),
        (lambda: pb_utils.Logger.log_info(None), TypeError),
        (lambda: pb_utils.is_model_ready(None), TypeError),
        (lambda: pb_utils.is_model_ready("m", 1), TypeError),
        (lambda: pb_utils.load_model(None), TypeError),
        (lambda: pb_utils.load_model("m", {}), TypeError),
        (lambda: pb_utils.MetricFamily(None, "", metric.GAUGE), TypeError),
        (lambda: pb_utils.MetricFamily("family_without_text", None, metric.GAUGE), TypeError),
        (lambda: pb_utils.load_model("m", files={"file:1/model.py": "text"}), TypeError),
        (lambda: pb_utils.load_model("m", files="text"), TritonModelException),
        (lambda: pb_utils.unload_model(None), TypeError),
    ],
)
def test_other_arguments_are_checked_as_in_triton(call, error):
    with pytest.raises(error):
        call()


def test_a_star_import_gives_what_models_use():
    names = {}
    exec("from triton_python_backend_utils import *", names)
    assert names["get_input_tensor_by_name"] is pb_utils.get_input_tensor_by_name
    assert {"TRITONSERVER_RESPONSE_COMPLETE_FINAL", "triton_string_to_numpy", "load_model", "Tensor"} <= names.keys()
    assert not {"np", "sys", "ServingError"} & names.keys()


def test_names_that_models_use_are_there():
    assert pb_utils.MetricFamily.COUNTER is pb_utils.MetricKind.COUNTER is pb_utils.COUNTER
    assert pb_utils.MetricFamily.HISTOGRAM is pb_utils.HISTOGRAM is not pb_utils.GAUGE
    assert pb_utils.MemoryType.TRITONSERVER_MEMORY_GPU is pb_utils.TRITONSERVER_MEMORY_GPU
    assert pb_utils.Logger.LogLevel.VERBOSE is pb_utils.Logger.VERBOSE
    assert pb_utils.InferenceResponseSender is pb_utils.ResponseSender
    assert pb_utils.numpy_to_triton_type(np.ones(1, np.float32).dtype) == 11


def metric_of(kind, **options):
    family = pb_utils.MetricFamily(f"family_{kind}", "", kind)
    return family.Metric(**options)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: metric_of(metric.COUNTER).increment(-1),
        lambda: metric_of(metric.COUNTER).set(1),
        lambda: metric_of(metric.GAUGE).observe(1),
        lambda: metric_of(metric.HISTOGRAM, buckets=[1]).value(),
        lambda: metric_of(metric.HISTOGRAM, buckets=[1]).increment(1),
        lambda: metric_of(metric.HISTOGRAM),
        lambda: metric_of(metric.HISTOGRAM, buckets=[2, 1]),
        lambda: metric_of(metric.GAUGE, buckets=[1]),
        lambda: metric_of(7),
        lambda: metric_of(metric.GAUGE, labels=["a"]),
        lambda: metric_of(metric.HISTOGRAM, buckets=5),
        lambda: metric_of(metric.HISTOGRAM, buckets=["a"]),
    ],
    ids=[
        *("decrease", "set counter", "observe gauge", "value", "increment", "no buckets", "order", "buckets", "kind"),
        *("labels", "number", "texts"),
    ],
)
def test_metrics_refuse_what_their_kind_cannot(misuse):
    with pytest.raises(TritonModelException):
        misuse()


def test_gauges_go_both_ways():
    gauge = metric_of(metric.GAUGE)
    gauge.set(5)
    gauge.increment(-2)
    assert gauge.value() == 3


@pytest.mark.parametrize(
    "array", [np.array([[1, 2]]).view(np.matrix), np.ma.masked_array([[1, 2]])], ids=["matrix", "masked"]
)
def test_a_tensor_of_an_array_of_another_class_is_a_plain_one(array):
    plain = pb_utils.Tensor("X", array).as_numpy()
    assert type(plain) is np.ndarray and plain.tolist() == [[1, 2]]
