"""Warm-up: each instance runs the samples of `model_warmup` before it gets its first request."""

import math
import struct
import threading
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelWarmup

from deployments.backends.backend import Batch, ModelInstance, ModelLoadError
from deployments.core.side_file import read_side_file
from deployments.core.statistics import ModelStatistics
from deployments.core.traced_request import begin_streams
from deployments.schedulers.implicit_states import default_states
from deployments.schedulers.sequence_controls import default_controls
from protocol.bytes_tensor import blank_array
from protocol.datatypes import BY_ENUM, DataType
from protocol.errors import InvalidArgument, ServingError
from protocol.infer import RESCHEDULED, Array, InferRequest, InferResponse
from protocol.normalise import check_tensor, request_prefix
from protocol.signature import Signature
from repository_loader.package import ModelPackage

_MOST: Final = 1 << 16
_MAX_ELEMENTS: Final = 1 << 28


def warm_up(
    package: ModelPackage, signature: Signature, instances: Sequence[ModelInstance], statistics: ModelStatistics
) -> None:
    """Run every sample, in order and `count` times, on every instance; blocks.

    A sample without a `batch_size` is skipped, as Triton skips it. What runs counts in the statistics. A decoupled
    model's responses come to the end before its next run; this must not be the thread of the loop that brings them.

    Raises:
        ModelLoadError: a sample cannot be made, or a run of it failed.
    """
    for sample in package.config.model_warmup:
        if not sample.batch_size:
            continue
        copies = sample.batch_size
        if max(copies, sample.count) > _MOST:
            raise ModelLoadError(f"warmup sample '{sample.name}' has a batch_size or count of more than {_MOST}")
        if copies > max(1, signature.max_batch_size):
            raise ModelLoadError(
                f"failed to run warmup sample '{sample.name}': batch size {copies} for '{package.name}', "
                f"max allowed is {signature.max_batch_size}"
            )
        inputs = _sample_inputs(package, signature, sample)
        for instance in instances:
            for _ in range(max(1, sample.count)):
                _run(instance, sample, inputs, copies, statistics)


def _run(
    instance: ModelInstance, sample: ModelWarmup, inputs: dict[str, Array], copies: int, statistics: ModelStatistics
) -> None:
    answers = _Answers()
    requests = [InferRequest(dict(inputs), 1, answers.take) for _ in range(copies)]
    batch = Batch(requests, copies)
    batch.start_ns = batch.infer_start_ns = batch.infer_end_ns = time.monotonic_ns()
    for request in requests:
        request.received_ns = request.queued_ns = batch.start_ns
    failure: Exception | None = None
    try:
        instance.execute(batch)
        results = batch.results if batch.late is None else [answer.wait() for answer in batch.late.answers]
        failure = next((result for result in results if isinstance(result, ServingError)), None)
        streams = [request for request in requests if batch.answered and not request.flags & RESCHEDULED]
        if batch.late is not None:
            begin_streams(batch, batch.start_ns)
        elif streams:
            failure = answers.wait(len(streams))
    except Exception as error:
        failure = error
    if failure is not None:
        raise ModelLoadError(f"failed to run warmup sample '{sample.name}': {failure}") from failure
    batch.end_ns = time.monotonic_ns()
    statistics.record_batch(batch)
    for request in streams:
        statistics.record_stream(batch.end_ns, request)


class _Answers:
    """What comes of the requests of a decoupled model, on whatever thread."""

    def __init__(self) -> None:
        self._failure: ServingError | None = None
        self._ended = threading.Semaphore(0)

    def take(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        """Take a response; the last of a request has `final`, or is an error."""
        if isinstance(result, ServingError):
            self._failure = result
        elif not result.final:
            return
        self._ended.release()

    def wait(self, count: int) -> ServingError | None:
        """Wait until so many requests are answered to the end; returns an error if there was one."""
        for _ in range(count):
            self._ended.acquire()
        return self._failure


def _sample_inputs(package: ModelPackage, signature: Signature, sample: ModelWarmup) -> dict[str, Array]:
    batching = signature.max_batch_size > 0
    inputs = {}
    for name, setting in sample.inputs.items():
        dims = tuple(setting.dims)
        if any(dim < 0 for dim in dims):
            raise ModelLoadError(
                f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
            )
        datatype, shape = BY_ENUM[setting.data_type], ((1, *dims) if batching else dims)
        array = _array(package, name, setting, datatype, shape)
        if name in signature.inputs:
            try:
                array = array.reshape(check_tensor(signature, name, datatype.name, shape, request_prefix("")))
            except InvalidArgument as error:
                raise ModelLoadError(error.message) from None
        inputs[name] = array
    return {**default_controls(package.config), **default_states(package.config), **inputs}


def _array(
    package: ModelPackage, name: str, setting: ModelWarmup.Input, datatype: DataType, shape: tuple[int, ...]
) -> Array:
    if math.prod(shape) > _MAX_ELEMENTS:
        raise ModelLoadError(f"warmup data of input '{name}' has more than {_MAX_ELEMENTS} elements")
    kind = setting.WhichOneof("input_data_type")
    if kind is None:
        raise ModelLoadError(f"warmup setting expects input '{name}' to have input_data_type set")
    if kind == "input_data_file":
        data = read_side_file(package, "warmup", setting.input_data_file, "warmup data file")
        return _from_bytes(data, name, datatype, shape)
    if kind == "zero_data" or not datatype.byte_size:
        return blank_array(datatype.numpy, shape)
    return _random(datatype, shape)


def _random(datatype: DataType, shape: tuple[int, ...]) -> Array:
    random = np.random.default_rng()
    if datatype.name == "BF16":  # the upper half of a float is a BF16
        return (random.random(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if datatype.numpy.kind == "f":
        return random.random(shape).astype(datatype.numpy)
    if datatype.numpy.kind == "b":
        return random.integers(0, 2, shape).astype(datatype.numpy)
    return random.integers(0, 128, shape).astype(datatype.numpy)


def _from_bytes(data: bytes, name: str, datatype: DataType, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    if datatype.byte_size:
        size = count * datatype.byte_size
        if len(data) < size:
            raise _short(name, size, len(data))
        return np.frombuffer(data, datatype.numpy, count).reshape(shape)
    array = np.empty(count, object)
    offset = 0
    for index in range(count):
        end = offset + 4
        if end <= len(data):
            end += struct.unpack_from("<I", data, offset)[0]
        if end > len(data) or end < offset + 4:
            raise _short(name, end, len(data))
        array[index] = data[offset + 4 : end]
        offset = end
    return array.reshape(shape)


def _short(name: str, expected: int, got: int) -> ModelLoadError:
    return ModelLoadError(f"warmup setting expects {expected} bytes for input '{name}', but the data provided is {got}")
