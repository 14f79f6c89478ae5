"""The script by which Ray's raylet starts workers under `eagleray serve`: a fork server makes them.

Most of what a worker does until it takes work is to import Ray, twice, and what Ray Serve needs. The first launcher of
a raylet imports that once and stays, as the fork server; those after it hand over what they were told, and end. A
worker whose runtime environment or variables are not those of the fork server is started as Ray does, and so is each
one where there is no fork server to be had.

Besides Ray itself nothing that is imported here shows in a worker before it asks for it (`imported_ahead.py`).
"""

import ast
import contextlib
import ctypes
import gc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
import time
import types
from typing import Any, Final

_CONTEXT: Final = "--serialized-runtime-env-context="
_LANGUAGE: Final = "--language="
_NODE: Final = "--node-id="
_JOB: Final = "RAY_JOB_ID"
_RAYLET: Final = "RAY_RAYLET_PID"
_ANY_JOB: Final = "ffffffff"
"""What Ray calls a worker's job that has none yet, and takes what job it is given first."""

_MADE: Final = b"made"
_TAKEN: Final = b"taken"
_WAIT_S: Final = 20.0
_TRIES: Final = 100
_PAUSE_S: Final = 0.01
_MAX_BYTES: Final = 1 << 20
_STREAMS: Final = 3
_LENGTH_BYTES: Final = 4
_PEER: Final = struct.Struct("3i")
_PR_SET_PDEATHSIG: Final = 1

Order = dict[str, Any]
"""Of a worker that is to be made the `arguments`, the `environment`, and device and inode of its `folder`."""


def main() -> None:
    """Become the worker, or the fork server, or end once that has made the worker."""
    arguments, parent = sys.argv[1:], os.getppid()
    order = read_order(arguments)
    made, listener = (False, None) if order is None else hand_over_or_listen(order)
    if made:
        return
    if order is None or listener is None:
        os.execv(sys.executable, [sys.executable, script_of_ray(), *arguments])
    become_worker(ForkServer(order, listener, parent).run())


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
    if rest[0] == "-s" and sys.flags.no_user_site:
        del rest[0]  # Python's own flag, which holds here
    if os.path.basename(rest[0]) != "default_worker.py":
        return None
    folder = os.stat(".")  # it may have no path any more
    return {"arguments": rest, "environment": dict(os.environ), "folder": [folder.st_dev, folder.st_ino]}


def hand_over_or_listen(order: Order) -> tuple[bool, socket.socket | None]:
    """Return whether the fork server has made the worker, and where there is no such server the socket of one.

    Of launchers that start together one becomes it, and the others wait until it listens.
    """
    for _ in range(_TRIES):
        try:
            return hand_over(order), None
        except ConnectionRefusedError:
            listener = listen(order)
        if listener is not None:
            return False, listener
        time.sleep(_PAUSE_S)
    return False, None


def hand_over(order: Order) -> bool:
    """Return whether the fork server has made the worker.

    Raises:
        ConnectionRefusedError: there is no fork server.
    """
    body = json.dumps(order).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_WAIT_S)
            connection.connect(address(order))
            if is_ours(connection):
                socket.send_fds(connection, [len(body).to_bytes(_LENGTH_BYTES)], range(_STREAMS))
                connection.sendall(body)
                if connection.recv(len(_MADE)) == _MADE:
                    connection.sendall(_TAKEN)
                    return True
    except ConnectionRefusedError:
        raise
    except OSError:
        pass  # it takes too long, or has ended
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

    def __init__(self, order: Order, listener: socket.socket, parent: int) -> None:
        self._order = order
        self._listener = listener
        self._parent = parent
        self._ahead: Any = None

    def run(self) -> Order:
        """Make workers, that of the own order first; returns in each of them, with its order.

        Where something has started a thread, which a process that is forked would lose, this one is the only worker; so
        it is where what it makes would draw the same numbers where Ray wants random ones, and where it can make none.
        """
        # Who outlived the raylet would be asked for nothing any more, and would not know.
        end_with_parent(signal.SIGKILL)
        if os.getppid() != self._parent or not raylet_lives():
            sys.exit()
        os.environ[_JOB] = _ANY_JOB  # Ray's library reads its variables when it is loaded, and never again
        script = self._order["arguments"][0]
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(script)  # as it is where Python runs the script
        import_all(script)
        self._ahead = import_ahead()
        gc.collect()
        gc.freeze()
        try:
            forks = len(os.listdir("/proc/self/task")) == 1 and not draws_alike()
            if forks and self._fork():
                return self._order
        except OSError:
            forks = False
        if not forks:
            self._listener.close()
            end_with_parent(0)
            return self._order
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        return self.serve()

    def serve(self) -> Order:
        """Make workers while they would be as what is installed; returns in each of them, with its order.

        After that this stays as their parent: without one they would be nobody's descendants, and could not be found.
        """
        while self._listener.fileno() >= 0:
            connection = self._listener.accept()[0]
            with connection:
                order = self._serve(connection)
                if order is not None:
                    return order
        with contextlib.suppress(ChildProcessError):
            os.wait()  # for all of them, as their ends are ignored
        sys.exit()

    def _serve(self, connection: socket.socket) -> Order | None:
        """Make a worker for who asks for it, and return its order in it; None where this goes on to be the server."""
        files: list[int] = []
        try:
            order = self._receive(connection, files)
            if order is None or not still_waits(connection):
                return None
            if not self._ahead.is_as_installed():
                self._listener.close()  # the next launcher becomes the fork server, with what is installed now
                return None
            if self._fork():
                if not is_taken(connection):
                    os._exit(0)
                for number, file in enumerate(files):
                    os.dup2(file, number)
                return order
        except (OSError, ValueError, LookupError, TypeError):
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


def raylet_lives() -> bool:
    """Return whether the process exists that Ray has named as the raylet."""
    try:
        os.kill(int(os.environ.get(_RAYLET) or os.getpid()), 0)
    except ProcessLookupError:
        return False
    return True


def end_with_parent(number: int) -> None:
    """Have this process get a signal when that ends which started it, or none (0)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def still_waits(connection: socket.socket) -> bool:
    """Return whether the other end is open; it sends nothing more."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True


def is_taken(connection: socket.socket) -> bool:
    """Tell the other end that this process has been made; returns whether it has not given up and started another."""
    with contextlib.suppress(OSError):
        connection.setblocking(True)
        connection.sendall(_MADE)
        return connection.recv(len(_TAKEN)) == _TAKEN
    return False


def import_all(path: str) -> None:
    """Import what a worker imports first."""
    for statement in ast.parse(source_of(path)).body:
        if isinstance(statement, ast.Import):
            names = [each.name for each in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [str(statement.module)]
        else:
            continue
        for name in names:
            importlib.import_module(name)


def import_ahead() -> Any:
    """Import what most workers need, and hide it; returns the `ImportedAhead`."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        ahead = importlib.import_module("eagleray.imported_ahead").ImportedAhead()
    finally:
        del sys.path[0]
    ahead.run()
    return ahead


def draws_alike() -> bool:
    """Return whether two processes that are forked here get the same from Ray's random number generator."""
    ray = importlib.import_module("ray")
    drawn = []
    for _ in range(2):
        reader, writer = os.pipe()
        if not (child := os.fork()):
            try:
                os.write(writer, ray.ObjectRef.from_random().binary())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            drawn.append(file.read())
        os.waitpid(child, 0)
    return drawn[0] == drawn[1]


def become_worker(order: Order) -> None:
    """Run the script of a worker as Python runs one."""
    os.environ.update(order["environment"])
    if _JOB in order["environment"]:
        os.environ[_JOB] = _ANY_JOB  # as its library has read, so that Ray gives it any job
    else:
        del os.environ[_JOB]
    sys.argv = order["arguments"]
    path = sys.argv[0]
    sys.orig_argv = [sys.executable, *(["-s"] if sys.flags.no_user_site else []), *sys.argv]
    importlib.invalidate_caches()
    multiprocessing.current_process().authkey = os.urandom(32)
    if hasattr(main_thread := threading.main_thread(), "_set_native_id"):
        main_thread._set_native_id()  # Python 3.11 keeps that of the process which was forked
    main_module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main_module.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
    if sys.version_info < (3, 14):
        main_module.__dict__.update(__annotations__={})
    sys.modules["__main__"] = main_module
    exec(compile(source_of(path), path, "exec"), main_module.__dict__)


def source_of(path: str) -> str:
    """Return what is in a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    main()
