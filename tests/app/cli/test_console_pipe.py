import os
import re
import threading
from collections.abc import Iterator

import pytest

from app.cli.console_pipe import ConsolePipe
from deployments.replica.model_output import CONSOLE_VARIABLE, Console
from tests.serving import wait_until


@pytest.fixture
def shown() -> list[str]:
    return []


@pytest.fixture
def pipe(shown: list[str]) -> Iterator[ConsolePipe]:
    opened = ConsolePipe(shown.append)
    yield opened
    opened.close()


def test_lines_of_several_processes_arrive_with_the_models_name(pipe: ConsolePipe, shown: list[str]) -> None:
    for name in ("first", "second"):
        Console(os.environ[CONSOLE_VARIABLE]).write(name, "says ü")
    wait_until(lambda: len(shown) == 2, "both lines")
    assert shown == ["[first] says ü", "[second] says ü"]


def test_a_line_commands_no_terminal_and_keeps_its_colours(pipe: ConsolePipe, shown: list[str]) -> None:
    console = Console(os.environ[CONSOLE_VARIABLE])
    for line in ("\x1b]0;title\x07\x1b[2J\x9bm\u202e\r", "\x1b[31mred", "a\tb"):
        console.write("m", line)
    wait_until(lambda: len(shown) == 3, "the lines")
    escaped = "\\u001b]0;title\\u0007\\u001b[2J\\u009bm\\u202e"
    assert shown == [f"[m] {escaped}\r", "[m] \x1b[31mred\x1b[0m", "[m] a\tb"]


def test_line_that_is_too_long_is_cut(pipe: ConsolePipe, shown: list[str]) -> None:
    Console(os.environ[CONSOLE_VARIABLE]).write("model", "x" * 100_000)
    wait_until(lambda: shown, "the line")
    assert shown == ["[model] " + "x" * (4095 - len("[model] "))]


def test_a_console_that_does_not_read_keeps_nobody_waiting_and_what_was_dropped_is_counted() -> None:
    shown: list[str] = []
    reading = threading.Event()

    def show(line: str) -> None:
        reading.wait()
        shown.append(line)

    pipe = ConsolePipe(show)
    console = Console(os.environ[CONSOLE_VARIABLE])
    written = 3000
    for _ in range(written):
        console.write("model", "x" * 4000)
    reading.set()

    def there_is_room_again() -> bool:
        nonlocal written
        written += 1
        console.write("model", "last")
        return any(line.endswith("last") for line in shown)

    wait_until(there_is_room_again, "room again")
    pipe.close()
    dropped = sum(int(number) for number in re.findall(r"\((\d+) lines before this are in Ray's logs", "".join(shown)))
    assert dropped > 0
    assert dropped + len(shown) == written


def test_pipe_is_removed_at_the_end(shown: list[str]) -> None:
    pipe = ConsolePipe(shown.append)
    path = os.environ[CONSOLE_VARIABLE]
    pipe.close()
    assert not os.path.exists(path)
    assert CONSOLE_VARIABLE not in os.environ
