"""A process of a Python model instance, as the replica sees it: from its start to its death."""

import contextlib
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deployments.backends.backend import Batch, ModelLoadError
from deployments.backends.gpu_fault import GpuFault
from deployments.backends.python import metric
from deployments.backends.python.process.area import AreaFullError, OwnArea, PeerArea, unmap
from deployments.backends.python.process.channel import Channel, Writer, received
from deployments.backends.python.process.code_digest import code_digest
from deployments.backends.python.process.conversation import Conversation, unreadable
from deployments.backends.python.process.environment import ENTRY, REFUSALS, Environment
from deployments.backends.python.process.exchange import (
    FREED_OUTPUTS,
    OWN_READINESS,
    read_response,
    read_result,
    read_signature,
    request_fields,
)
from deployments.backends.python.process.lent_devices import LentDevices
from deployments.backends.python.process.lent_regions import LentRegions
from deployments.backends.python.process.open_requests import OpenRequests, Take
from deployments.backends.python.process.response_rooms import ResponseRooms
from deployments.backends.python.process.starter import STARTER
from deployments.backends.python.server import ModelServer
from deployments.core.traced_request import begin_streams
from protocol.errors import Internal
from protocol.infer import RESCHEDULED, InferRequest

_LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    from deployments.core.clock import Clock

_DIGEST: Final = code_digest()
_CODE: Final = f"""{ENTRY}
from deployments.backends.python.process.code_digest import code_digest
if sys.argv.pop(1) != code_digest():
    sys.exit(43)
from deployments.backends.python.process.model_process import main
main()
"""
_ENDINGS: Final = {
    **REFUSALS,
    43: "has other code than its replica: Eagleray was installed anew meanwhile, and has to be deployed again",
}
_READS: Final = 64
"""Messages that are read in one turn of the loop."""
_FULL_SOCKET: Final = 300
"""More messages than a socket holds."""
_REAP_S: Final = 2.0
_MAX_FORKS: Final = 256
"""Processes that a model has forked and that call others at the same time; more end when they try."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What a process is to load: `fields` are those of the signature, `args` what `initialize` is given.

    `opens_devices` says that inputs may be in the memory of a GPU, `answers_late` that a batch may be `late`. Without
    an `environment` the process runs in that of the replica.
    """

    name: str
    file_path: str
    version_path: str
    model_path: str
    fields: tuple[Any, ...]
    args: dict[str, str]
    decoupled: bool
    environment: Environment | None = None
    opens_devices: bool = False
    answers_late: bool = False


class Child:
    """One process. Until `attach` one thread uses it, afterwards the event loop's alone, but for `kill` and `wait`.

    `done` is told of a batch that has its results, `died` of the process's end, once.
    """

    def __init__(
        self,
        order: LoadOrder,
        server: ModelServer | None,
        done: Callable[[Batch], None],
        died: Callable[[], None],
    ) -> None:
        """Start the process; it loads nothing yet.

        Raises:
            OSError: it cannot be started.
        """
        self.order = order
        self._done = done
        self._died = died
        self._batch: Batch | None = None
        self._open = OpenRequests()
        self._answers_any_time = order.decoupled
        self._number = 0
        self._first = 0
        self._dead = self._released = False
        self._doomed_for = ""
        self._state: tuple[str, str] = ("", "")
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as given_away:
            areas = []
            for name in ("inputs", "outputs", "results", "calls"):
                areas.append(os.memfd_create(f"eagleray-{name}"))
                undo.callback(os.close, areas[-1])
            connections: list[socket.socket] = []
            theirs: list[int] = []
            for _ in range(3):
                ours, their = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connections.append(undo.enter_context(ours))
                theirs.append(given_away.enter_context(their).fileno())
            work, questions, forks = connections
            theirs += areas
            environment = order.environment or Environment(sys.executable, os.environ)
            self.process = STARTER.start(
                [environment.python, "-c", _CODE, _DIGEST, *map(str, (os.getpid(), *theirs))],
                stdin=subprocess.DEVNULL,
                pass_fds=theirs,
                env=environment.variables,
                start_new_session=True,
            )
            undo.callback(self.process.wait)
            undo.callback(self.process.kill)
            self._exit = os.pidfd_open(self.process.pid)
            undo.pop_all()
        self._inputs = OwnArea(areas[0])
        self._work = Channel(work, self._inputs, PeerArea(areas[1]))
        self._server = server
        self._questions = self._conversation(questions, (areas[2], areas[3]))
        self._forks = forks
        self._takes_forks = True
        self._forked: list[Conversation] = []
        self._regions = LentRegions(self._work, self._questions.outbox, self._inputs, decoupled=order.decoupled)
        self._rooms = ResponseRooms(read_signature(order.fields))
        self._devices = LentDevices(self._questions.outbox)
        self._work.connection.setblocking(False)
        self._forks.setblocking(False)
        self._clock: Clock | None = None

    def load(self) -> None:
        """Have it load the model; blocks.

        Raises:
            ModelLoadError: with the model's reason, or how the process ended.
        """
        order = self.order
        paths = order.file_path, order.version_path, order.model_path
        more = self._server is not None, metric.exported_to(), order.opens_devices, order.answers_late
        with contextlib.suppress(OSError):  # it has ended already, which is heard now
            self._work.send("load", None, order.name, *paths, order.fields, order.args, *more)
        self._wait(lambda: self._state[0])
        while self._questions.read():  # what it has logged on the way
            pass
        kind, reason = self._state
        if kind != "ready" or self._dead:
            how = reason if kind == "failed" else f"the process of model instance '{order.name}' {self.ending()}"
            self.kill("could not load the model")
            self.release()
            raise ModelLoadError(how)

    @property
    def has_own_readiness(self) -> bool:
        """Whether the model that it has loaded has an `is_ready`."""
        return self._state == ("ready", OWN_READINESS)

    def execute(self, batch: Batch, timeout_s: float) -> None:
        """Run a batch and wait for its results, those that come later to the last; before `attach` only.

        One that runs for longer than `timeout_s` (0: may run for any time) ends the process.

        Raises:
            ServingError: the process died over it, or took too long.
        """
        self.begin(batch)
        self._wait(lambda: self._batch is None, timeout_s or math.inf)
        if self._batch is not None and not self._dead:
            self.time_out(timeout_s)
        self._wait(lambda: not self._open)
        if self._dead or self._batch is not None:
            raise Internal(f"the process of model instance '{self.order.name}' {self.ending()}")

    def attach(self, clock: "Clock") -> None:
        """Belong to an event loop from now on."""
        self._clock = clock
        for descriptor, read in self._readers().items():
            clock.watch(descriptor, read)

    def begin(self, batch: Batch) -> None:
        """Send a batch; `done` is called when it has its results, or `died`.

        Raises:
            ServingError: there is no shared memory for its inputs.
        """
        writer, held = Writer(self._regions), self._inputs.last_held
        self._regions.begin_batch()
        self._rooms.offer(batch.requests)
        first = self._number
        self._number += len(batch.requests)
        try:
            on_devices = self._devices.describe
            requests = [
                request_fields(first + place, request, writer, on_devices(request.devices))
                for place, request in enumerate(batch.requests)
            ]
            self._regions.tell()
            self._work.send("batch", writer, requests)
        except AreaFullError as error:
            self._inputs.let_go(held)
            raise error.told() from None
        except OSError as error:  # it is dead, which is about to be heard, or reads nothing
            self.kill(f"took no batch: {error.strerror}")
        except Exception:
            self._inputs.let_go(held)
            raise
        if self.order.decoupled:
            begin_streams(batch, batch.start_ns)
            self._open.stream(first, batch)
        self._batch = batch
        self._first = first

    def take_open(self) -> list[tuple[InferRequest, Take]]:
        """Return the requests that are not answered to the end, with what takes that, and forget them."""
        return self._open.clear()

    def time_out(self, timeout_s: float) -> None:
        """End it as it runs one batch for longer than that."""
        self.kill(f"ran one batch for more than {timeout_s * 1000:g} ms")

    def is_ready(self, timeout_s: float) -> bool:
        """Return what the model's own `is_ready` says; blocks, and must not be called on the loop's thread."""
        number, answer = self._questions.ask("is_ready")
        try:
            if self._clock is None:
                self._wait(answer.done, timeout_s)
                timeout_s = 0.0
            return bool(answer.result(timeout_s))
        except (OSError, TimeoutError):
            return False
        finally:
            self._questions.forget(number)

    @property
    def doomed(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._dead or bool(self._doomed_for)

    def read_results(self) -> None:
        """Take what it has said of its batch by now."""
        batch = self._batch
        for _ in range(_FULL_SOCKET):
            if self._batch is not batch or self._dead or not _readable(self._work.connection.fileno(), 0):
                return
            self._read_work()

    def kill(self, reason: str) -> None:
        """End it and what it has started; `died` is called when it is gone. Any thread may call this."""
        self._doomed_for = self._doomed_for or reason
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def say_close(self) -> None:
        """Tell it to finish what it runs, and then to end in order."""
        try:
            self._work.send("close", None)
        except OSError:
            pass  # it is dead already

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; returns False when it has not come. Blocks; any thread but the loop's may call this."""
        end_s = time.monotonic() + timeout_s
        if self._clock is None:
            self._wait(lambda: False, timeout_s)
        return _readable(self._exit, max(0.0, end_s - time.monotonic()))

    def ending(self) -> str:
        """Return how it ended, as a predicate."""
        if self._doomed_for:
            return f"was ended because it {self._doomed_for}"
        try:
            code = self.process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return _ENDINGS.get(code, f"ended with exit code {code}")

    def release(self) -> None:
        """Close what is left of it; it is dead, or is about to be."""
        if self._released:
            return
        self._released = True
        if self._clock is not None:
            for descriptor in self._readers():
                self._clock.unwatch(descriptor)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # what the model started
        except ProcessLookupError:
            pass
        self.process.wait()
        self._batch = None
        self._regions.close()
        self._devices.close()
        memory = [mapped for each in (self._questions, *self._forked) for mapped in each.close()]
        self._forked.clear()
        # The collector may find this object late, or never: it is part of a cycle, and may be frozen.
        memory += self._work.close()
        unmap(memory)
        self._forks.close()
        os.close(self._exit)

    def _readers(self) -> dict[int, Callable[[], None]]:
        forks = {self._forks.fileno(): self._take_fork} if self._takes_forks else {}
        return {
            self._work.connection.fileno(): self._read_work,
            self._questions.fileno(): self._read_questions,
            **forks,
            **{forked.fileno(): partial(self._read_fork, forked) for forked in self._forked},
            self._exit: self._ended,
        }

    def _wait(self, over: Callable[[], object], timeout_s: float = math.inf) -> None:
        """Read messages on this thread until something is so, the process has ended, or the time is up."""
        end_s = time.monotonic() + timeout_s
        while not over() and not self._dead:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            readers = self._readers()
            poll = select.poll()
            for descriptor in readers:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(None if left_s == math.inf else left_s * 1000):
                if not self._dead:
                    readers[descriptor]()

    def _read_work(self) -> None:
        for _ in range(_READS if self._answers_any_time else 1):
            data = received(self._work.connection)
            if data is None:
                return
            if not data:
                self._ended()
                return
            self._take_work(data)
            if self._dead:
                return
            if self._answers_any_time and self._work.owes_room:  # else it hears with its next batch
                self._questions.outbox.send(FREED_OUTPUTS, None, self._work.take_freed())

    def _take_work(self, data: bytes) -> None:
        try:
            kind, place, fields = self._work.read(data)
        except OSError as error:  # no descriptor, or no memory, to map what it has written
            self.kill(unreadable(error))
            return
        if kind == "results":
            self._take_results(place, *fields)
        elif kind == "response":
            self._take_response(place, *fields)
        else:
            self._state = (kind, fields[0] if fields else "")

    def _take_results(self, place: Any, started_ns: int, ended_ns: int, flags: list[int] | None, given: Any) -> None:
        batch, self._batch = self._batch, None
        assert batch is not None
        batch.infer_start_ns, batch.infer_end_ns = started_ns, ended_ns
        if flags is not None:
            for number, (request, now) in enumerate(zip(batch.requests, flags, strict=True), self._first):
                request.flags = now
                if now & RESCHEDULED:  # it runs again, under another number
                    self._open.forget(number)
        channel = self._work
        if given is None:
            self._answers_any_time, self._regions.may_lend_arenas = True, False
            self._open.answer_late(self._first, batch, self.order.name, self.kill)
        elif self.order.decoupled and not given:
            batch.answered = True
        elif type(given) is tuple:
            if given[0] == GpuFault.__name__:  # it ends by itself now
                self._doomed_for = self._doomed_for or "lost its GPU"
            batch.results = [read_result(given, channel, place)] * len(batch.requests)
        else:
            results = zip(given, batch.requests, strict=True)
            batch.results = [read_result(fields, channel, place, request.places) for fields, request in results]
            if batch.results:
                self._rooms.learn(batch.requests[0], batch.results[0])
        if self._clock is not None:
            self._done(batch)

    def _take_response(self, place: Any, number: int, final: bool, output_ns: int, fields: Any) -> None:
        self._open.take(number, read_response(fields, final, output_ns, self._work, place))

    def _read_questions(self) -> None:
        if self._questions.read() is False:
            self._ended()

    def _take_fork(self) -> None:
        """Begin a conversation with a process that the model has forked, which has sent its end of it."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._forks, 1, 3)
        except OSError:
            return
        if not data:  # the process has ended, or its model has closed the socket
            self._takes_forks = False
            if self._clock is not None:
                self._clock.unwatch(self._forks.fileno())
            return
        if len(descriptors) != 3 or len(self._forked) >= _MAX_FORKS:
            for descriptor in descriptors:
                os.close(descriptor)
            return
        connection, results, calls = descriptors
        forked = self._conversation(socket.socket(fileno=connection), (results, calls))
        self._forked.append(forked)
        if self._clock is not None:
            self._clock.watch(forked.fileno(), partial(self._read_fork, forked))

    def _read_fork(self, forked: Conversation) -> None:
        if forked.read() is False:
            if self._clock is not None:
                self._clock.unwatch(forked.fileno())
            self._forked.remove(forked)
            unmap(forked.close())

    def _conversation(self, connection: socket.socket, areas: tuple[int, int]) -> Conversation:
        return Conversation(connection, areas, self._server, self._requests, self.kill)

    def _requests(self, numbers: tuple[int, ...]) -> list[InferRequest]:
        """Return those of some requests that the process still has."""
        running = () if self._batch is None else self._batch.requests
        found = []
        for number in numbers:
            place = number - self._first
            request = running[place] if 0 <= place < len(running) else self._open.get(number)
            if request is not None:
                found.append(request)
        return found

    def _ended(self) -> None:
        """Hear of its end, from whichever descriptor says so first; what it has said before counts."""
        if self._dead:
            return
        self._dead = True
        try:
            while self._questions.read():
                pass
            while data := received(self._work.connection):
                self._take_work(data)
        except Exception:
            _LOG.exception("what the process of a model said last cannot be read")
        finally:
            self._died()


def _readable(descriptor: int, timeout_s: float) -> bool:
    """Whether there is something to read within a time; select(2) takes no descriptor above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
