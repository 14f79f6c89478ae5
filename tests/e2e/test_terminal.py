"""`eagleray serve` on a terminal, as at a desk: the live table, and the Ctrl-C of the keyboard, which every process hears."""

import fcntl
import os
import shutil
import termios
import threading
from pathlib import Path

import psutil

from tests.repositories import EXAMPLES, write_broken_models
from tests.serving import EAGLERAY, READY_LINE, ROOT, STOP_TIMEOUT_S, Process, environment, wait_until

COLUMNS = ("model", "version", "backend", "placement", "replicas", "device", "state", "seconds")


class Terminal:
    """A command in the foreground of a terminal of its own, and what is on its screen."""

    def __init__(self, *command: str) -> None:
        self._keyboard, terminal = os.openpty()
        termios.tcsetwinsize(terminal, (40, 120))
        self._screen = bytearray()
        self.process = psutil.Popen(
            command,
            cwd=ROOT,
            env=environment(TERM="xterm", COLUMNS="", LINES=""),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._keyboard, 4096)
            except OSError:  # nobody is left on the other side
                return
            self._screen += piece

    @property
    def screen(self) -> str:
        return self._screen.decode("utf-8", "replace")

    def wait_for(self, text: str, timeout_s: float = 120.0) -> None:
        wait_until(lambda: text in self.screen or self.process.poll() is not None, text, timeout_s)
        assert text in self.screen, self.screen

    def press(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def close(self) -> None:
        os.close(self._keyboard)


def test_a_live_table_shows_the_models_and_control_c_ends_everything(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    broken = write_broken_models(tmp_path / "others")
    shutil.copytree(broken / "broken_onnx", tmp_path / "broken_onnx")
    shutil.rmtree(broken)
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    terminal = Terminal(
        EAGLERAY, "serve", "--model-repository", str(tmp_path), *ports, "--num-cpus", "4", "--no-dashboard"
    )
    started: set[psutil.Process] = set()
    try:
        terminal.wait_for("LOADING")
        terminal.wait_for(READY_LINE)
        head = next(line for line in terminal.screen.splitlines() if "placement" in line)
        assert [word for word in COLUMNS if word in head] == list(COLUMNS)
        for text in ("READY", "UNAVAILABLE", "digits", "packed", "onnxruntime"):
            assert text in terminal.screen
        assert "2 model versions are ready, 1 failed" in terminal.screen
        started.update(terminal.process.children(recursive=True))
        terminal.press(b"\x03")
        assert terminal.process.wait(STOP_TIMEOUT_S) == 0, terminal.screen
        assert "draining" in terminal.screen
        assert "Traceback" not in terminal.screen
        Process.assert_none_left(started)
    finally:
        for process in started | set(
            terminal.process.children(recursive=True) if terminal.process.is_running() else ()
        ):
            if process.is_running():
                process.kill()
        if terminal.process.is_running():
            terminal.process.kill()
        terminal.process.wait(10)
        terminal.close()
