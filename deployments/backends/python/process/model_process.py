"""The process of one Python model instance, from inside: runs the batches that the replica sends."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from deployments.backends.answer import Outcome
from deployments.backends.backend import Batch, ModelLoadError
from deployments.backends.gpu_fault import GpuFault, is_of_lost_gpu
from deployments.backends.python import (
    metric,
    pb_utils,  # noqa: F401, models import pb_utils by its own name
)
from deployments.backends.python.errors import told
from deployments.backends.python.instance import DecoupledPythonInstance, PythonInstance
from deployments.backends.python.loading import load_instance
from deployments.backends.python.model_module import SoleModule, hide_arguments
from deployments.backends.python.process.area import AreaFullError, OwnArea, PeerArea
from deployments.backends.python.process.asked_server import AskedServer
from deployments.backends.python.process.channel import READ_BYTES, Channel, Writer
from deployments.backends.python.process.exchange import (
    FREED_OUTPUTS,
    OWN_READINESS,
    ProcessRequest,
    read_request,
    read_signature,
    result_fields,
)
from deployments.backends.python.process.forwarded_log import forward_log
from deployments.backends.python.process.lent_devices import FORGET as FORGET_DEVICE
from deployments.backends.python.process.lent_devices import BorrowedDevices
from deployments.backends.python.process.lent_regions import FORGET, NEWS, BorrowedRegions
from deployments.backends.python.process.questions import Questions, connected
from deployments.log.line_format import about_requests
from deployments.replica.model_output import show_model_output
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from deployments.replica.process_memory import keep_freed_pages
from protocol.errors import Internal, ServingError
from protocol.infer import InferRequest, StreamedResponse

_LOG = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1


class ModelProcess:
    """Loads the model, then runs batch after batch on the main thread."""

    def __init__(self, channel: Channel, questions: Questions) -> None:
        self._channel = channel
        self._questions = questions
        self._regions = BorrowedRegions()
        self._devices = BorrowedDevices()
        questions.hears[FORGET] = self._regions.forget
        questions.hears[FORGET_DEVICE] = self._devices.forget
        questions.hears[FREED_OUTPUTS] = lambda _, freed: channel.release(freed)

    def run(self) -> None:
        """Do what the replica says, until it says that this is the end."""
        instance = self._load()
        if instance is None:
            return
        while data := self._channel.connection.recv(READ_BYTES):
            kind, place, fields = self._channel.read(data)
            if kind == "close":
                break
            if kind == NEWS:
                (regions,) = fields
                self._regions.borrow(self._channel.receive_descriptors(len(regions)), regions)
                continue
            self._run_batch(instance, fields[0], place)
            del place, fields
        instance.close()

    def _load(self) -> PythonInstance | None:
        data = self._channel.connection.recv(READ_BYTES)
        _, _, (name, *paths, fields, args, serves, metrics, opens_devices, answers_late) = self._channel.read(data)
        file_path, version_path, model_path = paths
        if metrics:
            metric.export_to(lambda: NodeCounters(NodeFolder.at(metrics)), metrics)
        signature = read_signature(fields)
        module = SoleModule(model_path, version_path, AskedServer(self._questions) if serves else None)
        try:
            replies = self if signature.decoupled else None
            instance = load_instance(
                module,
                file_path,
                name,
                args,
                signature,
                replies,
                opens_devices=opens_devices,
                answers_late=answers_late,
            )
        except ModelLoadError as error:
            self._channel.send("failed", None, error.reason)
            return None
        if isinstance(instance, DecoupledPythonInstance):
            instance.gpu_is_lost = _end
        gc.freeze()  # what is loaded stays; the collector need not look at it again
        self._questions.answers["is_ready"] = instance.is_ready
        self._channel.send("ready", None, OWN_READINESS if instance.has_own_readiness else "")
        return instance

    def _run_batch(self, instance: PythonInstance, given: Sequence[Any], place: Any) -> None:
        channel, ask = self._channel, self._questions.ask
        view, devices = self._regions.view, self._devices.inputs
        requests: list[InferRequest] = [read_request(fields, ask, channel, place, view, devices) for fields in given]
        rows = sum([request.rows for request in requests])
        batch = Batch(requests, rows)
        failure: ServingError | None = None
        try:
            instance.execute(batch)
        except ServingError as error:
            failure = error.without_frames()
        except Exception as error:  # of ours, about what the model returned: the batch's, not the process's end
            whose = about_requests("", None, requests)
            _LOG.exception("the results of model instance '%s' cannot be read", instance.name, extra=whose)
            failure = Internal(told(error))
        flags_now = [request.flags for request in requests]
        changed = flags_now if flags_now != [fields[6] for fields in given] else None
        results, batch.results = batch.results, ()
        writer = Writer()
        outcomes: Any = [
            result_fields(result, writer, request.places) for result, request in zip(results, requests, strict=False)
        ]
        late = None if batch.late is None else list(zip(given, batch.late.answers, strict=True))
        if failure is not None:
            outcomes = result_fields(failure, writer)  # of all
        elif late is not None:
            outcomes = None
        times = batch.infer_start_ns, batch.infer_end_ns
        del batch, requests, results  # the place of the inputs goes back now, unless the model keeps some
        try:
            channel.send("results", writer, *times, changed, outcomes)
        except AreaFullError as error:
            channel.send("results", None, *times, changed, result_fields(error.told(), Writer()))
        for fields, answer in late or ():
            answer.when_set(partial(self._put_late, fields[0]))
        if isinstance(failure, GpuFault):
            raise failure  # which ends the process

    def put(self, request: InferRequest, outcome: Outcome) -> None:
        """Send a response of a decoupled model."""
        assert isinstance(request, ProcessRequest)
        final, output_ns = True, 0
        if isinstance(outcome, StreamedResponse):
            final, output_ns = outcome.final, outcome.output_ns
        self._send_response(request.number, outcome, final, output_ns)

    def _put_late(self, number: int, outcome: Outcome) -> None:
        with contextlib.suppress(OSError):  # the replica is gone
            self._send_response(number, outcome, True, 0)
        if isinstance(outcome, ServingError) and is_of_lost_gpu(outcome.message):
            _end()

    def _send_response(self, number: int, outcome: Outcome, final: bool, output_ns: int) -> None:
        writer = Writer()
        fields = result_fields(outcome, writer)
        try:
            self._channel.send("response", writer, number, final, output_ns, fields)
        except AreaFullError as error:
            self._channel.send("response", None, number, True, 0, result_fields(error.told(), Writer()))


def main() -> None:
    """Run the process; the arguments name its parent and the descriptors that it was given."""
    parent, work, questions, forks, *areas = map(int, sys.argv[1:9])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before it was heard of
        return
    for descriptor in (work, questions, forks, *areas):
        os.set_inheritable(descriptor, False)
    working = Channel(connected(socket.socket(fileno=work)), OwnArea(areas[1]), PeerArea(areas[0]))
    asking = Channel(connected(socket.socket(fileno=questions)), OwnArea(areas[3]), PeerArea(areas[2]))
    asked = Questions(asking, socket.socket(fileno=forks))
    process = ModelProcess(working, asked)
    asked.start()
    forward_log(asked.tell)
    keep_freed_pages()
    show_model_output()
    hide_arguments()
    if sys.version_info >= (3, 14):  # whose `asyncio.get_event_loop` makes none
        _set_event_loop()
        os.register_at_fork(after_in_child=_set_event_loop)
    status = 1
    try:
        process.run()
        status = 0
    except ConnectionError:
        pass  # the replica is gone
    except BaseException:
        _LOG.exception("the process of a model failed")
    finally:
        _end(status)


def _set_event_loop() -> None:
    """Have the model find an event loop that does not run, as in earlier versions of Python."""
    asyncio.set_event_loop(asyncio.new_event_loop())


def _end(status: int = 1) -> None:
    """End the process at once; threads that the model left behind do not keep it, nor streams that it has closed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)
