from typing import Any

import pytest
from click.testing import CliRunner

from app.cli.client.commands import status
from app.cli.client.status import Status


def row(name: str, state: str = "READY", reason: str = "") -> dict[str, Any]:
    return {"name": name, "version": "1", "state": state, "reason": reason}


def test_names_and_reasons_are_whole_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [row("digits_postprocess"), row("digits_preprocess"), row("broken", "UNAVAILABLE", "no file")]
    counts = {
        ("digits_postprocess", "1"): {
            "inference_stats": {
                "success": {"count": 1_234_567, "ns": 1_234_567_000_000},
                "fail": {"count": 3},
                "queue": {"ns": 0},
            }
        }
    }
    Status({"name": "triton", "version": "1"}, True, rows, counts, "http://x").print(None, clear=False)
    first, head, *lines = capsys.readouterr().out.splitlines()
    assert first == "triton 1 at http://x: ready"
    assert head.split() == ["model", "version", "state", "requests", "failed", "mean", "ms", "queue", "ms"]
    assert lines[0].split() == ["digits_postprocess", "1", "READY", "1234567", "3", "1.00", "0.00"]
    assert [line.split()[0] for line in lines] == ["digits_postprocess", "digits_preprocess", "broken", "broken"]
    assert lines[-1] == "broken 1: no file"


LONG = "a_name_that_says_what_the_model_is_for_and_who_made_it"


def print_long(columns: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    took = {"success": {"count": 100, "ns": 12_345_000_000}, "fail": {"count": 0}, "queue": {"ns": 98_765_000_000}}
    counts = {(LONG, "1"): {"inference_stats": took}}
    rows = [row(LONG), row("broken", "UNAVAILABLE")]
    Status({"name": "triton", "version": "1"}, True, rows, counts, "http://x").print(None, clear=False)
    return capsys.readouterr().out.splitlines()[2:]


def test_long_names_take_no_digit_of_a_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = print_long("80", capsys, monkeypatch)
    assert max(map(len, lines)) <= 80
    first, *rest = (line.split() for line in lines)
    assert first[1:] == ["1", "READY", "100", "0", "123.45", "987.65"]
    assert "".join(line[0] for line in (first, *rest[:-1])) == LONG


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (30, ["READY"]),
        (40, ["1", "READY"]),
        (50, ["1", "READY", "100"]),
        (60, ["1", "READY", "100", "0"]),
        (70, ["1", "READY", "100", "0", "123.45"]),
    ],
)
def test_a_narrow_terminal_has_the_names_and_fewer_columns(
    columns: int, shown: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = print_long(str(columns), capsys, monkeypatch)
    assert max(map(len, lines)) <= columns
    first, *rest = (line.split() for line in lines)
    assert first[1:] == shown
    assert "".join(line[0] for line in (first, *rest[:-1])).startswith(LONG)
    assert any("UNAVAILABLE" in line for line in lines)


def test_a_narrow_terminal_that_watches_has_the_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "45")
    took = {"success": {"count": 5, "ns": 0}, "fail": {"count": 0}, "queue": {"ns": 0}}
    first, second = (
        Status({"name": "triton", "version": "1"}, True, [row("m")], {("m", "1"): {"inference_stats": took}}, "x", at_s)
        for at_s in (1.0, 3.0)
    )
    second.print(first, clear=False)
    _, head, line = capsys.readouterr().out.splitlines()
    assert (head.split(), line.split()) == (["model", "version", "state", "req/s"], ["m", "1", "READY", "0.0"])


def test_a_pipe_gets_every_model_in_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = print_long(None, capsys, monkeypatch)
    assert first.split() == [LONG, "1", "READY", "100", "0", "123.45", "987.65"]
    assert second.split() == ["broken", "1", "UNAVAILABLE", "-", "-", "-", "-"]


ODD = "mask:fire:[red]\x1b[2J"
"""A name that rich would take for an emoji and a style, and a terminal for an order to clear it."""
SHOWN = "mask:fire:[red]\N{REPLACEMENT CHARACTER}[2J"


def test_names_and_reasons_are_shown_as_they_are_and_steer_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    rows = [row(ODD, "UNAVAILABLE", "first\tline\n\x1b]0;owned\x07second")]
    Status({"name": ODD, "version": "1"}, True, rows, {}, "http://x").print(None, clear=False)
    first, _, model, *reason = capsys.readouterr().out.splitlines()
    assert first == f"{SHOWN} 1 at http://x: ready"
    assert model.split()[0] == SHOWN
    assert [each.expandtabs().split() for each in reason] == [
        [SHOWN, "1:", "first", "line"],
        ["\N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}second"],
    ]


def test_watching_ends_by_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [Status({"name": "triton", "version": "1"}, True, [row("m")], {}, "http://x") for _ in range(2)]

    def ask(_: object) -> Status:
        if not seen:
            raise KeyboardInterrupt
        return seen.pop()

    monkeypatch.setattr(Status, "of", ask)
    monkeypatch.setattr("app.cli.client.commands._WATCH_S", 0.0)
    done = CliRunner().invoke(status, ["--watch"])
    assert (done.exit_code, done.output.count("http://x: ready"), "Aborted" in done.output) == (0, 2, False)
