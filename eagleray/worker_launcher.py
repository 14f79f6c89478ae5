"""The script by which Ray's raylet starts workers under `eagleray serve`: a fork server makes them.

Most of what a worker does until it takes work is to import Ray, twice, and what Ray Serve needs. The first launcher of
a raylet imports that once and stays, as the fork server; those after it hand over what they were told, and end. A
worker whose runtime environment or variables are not those of the fork server is started as Ray does, and so is each
one where there is no fork server to be had.

Of Eagleray's own modules none shows in a worker that does not ask for it (`eagleray.import_ahead`).
"""

import ast
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import signal
import socket
import struct
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

_OF_SERVE: Final = (
    "anyio.to_thread",
    "fastapi",
    "grpc",
    "grpc_reflection.v1alpha.reflection",
    "jsonschema",
    "opentelemetry.sdk.trace",
    "prometheus_client",
    "pydantic",
    "requests",
    "starlette.routing",
    "uvicorn",
    "uvloop",
)
"""What Ray Serve imports in every worker, and not before it has to."""

_BLAS_THREADS: Final = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The first of these that is set says how many threads NumPy's library has, or else the number of cores does."""

_CONTEXT: Final = "--serialized-runtime-env-context="
_LANGUAGE: Final = "--language="
_NODE: Final = "--node-id="
_JOB: Final = "RAY_JOB_ID"
_ANY_JOB: Final = "ffffffff"
"""What Ray calls a worker's job that has none yet, and takes what job it is given first."""

_MADE: Final = b"made"
_WAIT_S: Final = 20.0
_MAX_BYTES: Final = 1 << 20
_STREAMS: Final = 3
_LENGTH_BYTES: Final = 4
_PEER: Final = struct.Struct("3i")
_PR_SET_PDEATHSIG: Final = 1

Order = dict[str, Any]
"""Of a worker that is to be made the `arguments`, the `environment`, and device and inode of its `folder`."""


def main() -> None:
    """Become the worker, or the fork server, or end once that has made the worker."""
    arguments = sys.argv[1:]
    order = read_order(arguments)
    if order is not None and hand_over(order):
        return
    listener = None if order is None else listen(order)
    if order is None or listener is None:
        os.execv(sys.executable, [sys.executable, script_of_ray(), *arguments])
    become_worker(ForkServer(order, listener).run())


def script_of_ray() -> str:
    """Return the path of the script that would be started in place of this one."""
    found = importlib.util.find_spec("ray")
    assert found and found.submodule_search_locations
    return os.path.join(found.submodule_search_locations[0], "_private", "workers", "setup_worker.py")


def read_order(arguments: list[str]) -> Order | None:
    """Return what a fork server has to know, None for what is no worker of Python's, or has an environment.

    `ray start` starts its server of remote drivers by the same script.
    """
    rest, context, language = [], "", ""
    for argument in arguments:
        if argument.startswith(_CONTEXT):
            context = argument.removeprefix(_CONTEXT)
        elif argument.startswith(_LANGUAGE):
            language = argument.removeprefix(_LANGUAGE)
        else:
            rest.append(argument)
    changes = {name: value for name, value in json.loads(context or "{}").items() if value}
    if changes.pop("py_executable", sys.executable) != sys.executable or changes or language != "PYTHON":
        return None
    if os.path.basename(rest[0]) != "default_worker.py":
        return None
    folder = os.stat(".")  # it may have no path any more
    return {"arguments": rest, "environment": dict(os.environ), "folder": [folder.st_dev, folder.st_ino]}


def hand_over(order: Order) -> bool:
    """Return whether there is a fork server that has made the worker."""
    body = json.dumps(order).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_WAIT_S)
        connection.connect(address(order))
        if is_ours(connection):
            socket.send_fds(connection, [len(body).to_bytes(_LENGTH_BYTES)], range(_STREAMS))
            connection.sendall(body)
            return connection.recv(len(_MADE)) == _MADE
    return False


def listen(order: Order) -> socket.socket | None:
    """Return the socket of the node's fork server, None where another has it."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address(order))
        listener.listen(128)
    except OSError:
        listener.close()
        return None
    return listener


def address(order: Order) -> str:
    """Return where the fork server of a node of Ray's listens: a name that is nobody's once it has ended (unix(7))."""
    arguments: list[str] = order["arguments"]
    return "\0eagleray-workers-" + next(each for each in arguments if each.startswith(_NODE))


def is_ours(connection: socket.socket) -> bool:
    """Return whether it is this user whose process is at the other end."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(peer)[1] == os.getuid())


class ForkServer:
    """Makes workers, which are as the process is that it is called in."""

    def __init__(self, order: Order, listener: socket.socket) -> None:
        self._order = order
        self._listener = listener

    def run(self) -> Order:
        """Make workers, that of the own order first; returns in each of them, with its order.

        Where something has started a thread, which a process that is forked would lose, this one is the only worker; so
        it is where what it makes would draw the same numbers where Ray wants random ones.
        """
        os.environ[_JOB] = _ANY_JOB  # Ray's library reads its variables when it is loaded, and never again
        script = self._order["arguments"][0]
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(script)  # as it is where Python runs the script
        import_all(script)
        import_numpy_ahead()
        if len(os.listdir("/proc/self/task")) > 1 or draws_alike():
            self._listener.close()
            return self._order
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # Who outlived the raylet would be asked for nothing any more, and would not know.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if self._fork():
            return self._order
        while True:
            connection = self._listener.accept()[0]
            with connection:
                order = self._serve(connection)
                if order is not None:
                    return order

    def _serve(self, connection: socket.socket) -> Order | None:
        """Make a worker for who asks for it, and return its order in it; None where this goes on to be the server."""
        files: list[int] = []
        try:
            order = self._receive(connection, files)
            if order is None or not still_waits(connection):
                return None
            if self._fork():
                for number, file in enumerate(files):
                    os.dup2(file, number)
                return order
            connection.sendall(_MADE)
        except (OSError, ValueError):
            pass  # who asks starts the worker itself
        finally:
            for file in files:
                os.close(file)
        return None

    def _receive(self, connection: socket.socket, files: list[int]) -> Order | None:
        """Return what is to be made, None for a worker that would be another; `files` gets its standard streams."""
        connection.settimeout(_WAIT_S)
        if not is_ours(connection):
            return None
        head, received, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, _STREAMS)
        files += received
        length = min(int.from_bytes(head), _MAX_BYTES)
        body = bytearray()
        while len(body) < length:
            part = connection.recv(length - len(body))
            if not part:
                return None
            body += part
        order: Order = json.loads(body)
        return order if len(files) == _STREAMS and _of_all(order) == _of_all(self._order) else None

    def _fork(self) -> bool:
        """Return whether this is the process that was made."""
        if os.fork():
            return False
        os.setpgrp()  # with a worker Ray ends its group
        self._listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return True


def _of_all(order: Order) -> tuple[str, dict[str, str], list[int]]:
    """Return what is the same of all workers that one server makes."""
    return order["arguments"][0], {**order["environment"], _JOB: _ANY_JOB}, order["folder"]


def still_waits(connection: socket.socket) -> bool:
    """Return whether the other end is open; it sends nothing more."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True


def import_all(path: str) -> None:
    """Import what a worker imports first, and what Ray Serve imports in it."""
    for statement in ast.parse(source_of(path)).body:
        if isinstance(statement, ast.Import):
            names = [each.name for each in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [str(statement.module)]
        else:
            continue
        for name in names:
            importlib.import_module(name)
    for name in _OF_SERVE:
        with contextlib.suppress(Exception):  # what matters of it fails again where it is used, and is told there
            importlib.import_module(name)


def import_numpy_ahead() -> None:
    """Import what needs NumPy, which starts threads of its BLAS as it is imported, and forking would lose those.

    It has none here, and gets them in a worker; where the environment asks for some, it is left to the workers.
    """
    asked = [os.environ[name] for name in _BLAS_THREADS if name in os.environ]
    if asked[:1] not in ([], ["1"]):
        return
    with contextlib.suppress(Exception):  # as above
        if not asked:
            os.environ[_BLAS_THREADS[0]] = "1"
            try:
                importlib.import_module("numpy")
            finally:
                del os.environ[_BLAS_THREADS[0]]
            have_blas_follow()
        with undrawn():
            importlib.import_module("ray.serve")
            importlib.import_module("eagleray").import_ahead()


def have_blas_follow() -> None:
    """Give NumPy's BLAS as many threads as Ray says, which it finds where it is imported after Ray has said it."""
    utils: Any = importlib.import_module("ray._private.utils")
    say, count = utils.set_omp_num_threads_if_unset, 1

    def say_and_set() -> bool:
        nonlocal count
        said: bool = say()
        if said and (wanted := int(os.environ["OMP_NUM_THREADS"])) != count:
            importlib.import_module("threadpoolctl").threadpool_limits(wanted, user_api="blas")
            count = wanted
        return said

    utils.set_omp_num_threads_if_unset = say_and_set


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Have classes of actors that modules define get their ids from elsewhere than Ray's random number generator.

    The first number would seed it, and all workers would draw the same ones from then on.
    """
    actor: Any = importlib.import_module("ray.actor")
    kept = actor.ActorClassID
    actor.ActorClassID = types.SimpleNamespace(from_random=lambda: kept(os.urandom(kept.size())))
    try:
        yield
    finally:
        actor.ActorClassID = kept


def draws_alike() -> bool:
    """Return whether two processes that are forked here get the same from Ray's random number generator."""
    ray = importlib.import_module("ray")
    drawn = []
    for _ in range(2):
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.write(writer, ray.ObjectRef.from_random().binary())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            drawn.append(file.read())
        os.waitpid(child, 0)
    return drawn[0] == drawn[1]


def become_worker(order: Order) -> None:
    """Run the script of a worker as Python runs one."""
    os.environ.update(order["environment"])
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.argv = order["arguments"]
    path = sys.argv[0]
    main_module = types.ModuleType("__main__")
    main_module.__file__ = path
    sys.modules["__main__"] = main_module
    exec(compile(source_of(path), path, "exec"), main_module.__dict__)


def source_of(path: str) -> str:
    """Return what is in a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    main()
