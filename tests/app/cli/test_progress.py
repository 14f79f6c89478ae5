import io

import pytest
from rich.console import Console

from app.cli.progress import Progress, picture, summary
from deployments.control.directory import LOADING, READY, UNAVAILABLE, Directory, ModelEntry, VersionEntry

LONG = "the weights are not where they were, " * 10 + "\nand a second line"


def directory(ready: int, loading: int = 0, failed: int = 0) -> Directory:
    found = Directory()
    for state, count in ((READY, ready), (LOADING, loading), (UNAVAILABLE, failed)):
        for number in range(count):
            reason = LONG if state == UNAVAILABLE else ""
            version = VersionEntry(state, reason, "isolated", "CPU", 1, 1.5)
            found.models[f"{state.lower()}_model_{number}"] = ModelEntry("", "onnxruntime", "", {1: version})
    return found


def drawn(found: Directory, width: int = 120, height: int = 40) -> list[str]:
    screen = io.StringIO()
    console = Console(file=screen, width=width, height=height, force_terminal=False)
    console.print(picture(found, width, height))
    return screen.getvalue().splitlines()


def test_24_models_fit_on_a_terminal_with_the_reasons_on_lines_of_their_own() -> None:
    lines = drawn(directory(20, 2, 2))
    assert len(lines) < 40
    assert max(map(len, lines)) <= 120
    assert lines[0] == "20 model versions are ready, 2 loading, 2 failed"
    rows = [line for line in lines if "_model_" in line and "│" in line]
    assert len(rows) == 24
    assert all("onnxruntime" in row and "isolated" in row for row in rows)
    reasons = [line for line in lines if "the weights" in line]
    assert [line.partition(":")[0] for line in reasons] == ["unavailable_model_0 1", "unavailable_model_1 1"]
    assert all(line.endswith("…") for line in reasons)


@pytest.mark.parametrize("height", [15, 24, 40])
@pytest.mark.parametrize("counts", [(300, 0, 0), (0, 300, 0), (0, 0, 300), (100, 100, 100), (50, 1, 1)])
def test_the_table_is_never_taller_than_the_terminal(counts: tuple[int, int, int], height: int) -> None:
    lines = drawn(directory(*counts), height=height)
    assert len(lines) < height
    hidden = next(line for line in lines if line.startswith("and ") and "reasons" not in line)
    shown = sum("_model_" in line and "│" in line for line in lines)
    assert hidden == f"and {sum(counts) - shown} more"


def test_what_failed_is_shown_before_what_is_ready() -> None:
    lines = drawn(directory(100, 0, 2), height=20)
    assert sum("unavailable_model_" in line and "│" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((22, 0, 2), "22 model versions are ready, 2 failed"),
        ((1, 0, 0), "1 model version is ready"),
        ((0, 3, 0), "0 model versions are ready, 3 loading"),
    ],
)
def test_summary_counts_what_failed(counts: tuple[int, int, int], text: str) -> None:
    assert summary(directory(*counts)) == text


def test_a_model_whose_replica_died_at_once_has_not_failed() -> None:
    found = directory(1, 0, 0)
    found.models["ready_model_0"].versions[1].lost_its_replicas()
    assert summary(found) == "0 model versions are ready, 1 loading"
    assert any("Serve is replacing it" in line for line in drawn(found))


def test_names_and_reasons_are_shown_as_they_are_and_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    version = VersionEntry(UNAVAILABLE, "\x1b[2Jno file\x07", "isolated", "CPU", 1, 1.5)
    found = Directory(models={"mask:fire:[red]": ModelEntry("", "python", "", {1: version})})
    shown = "mask:fire:[red] 1: \N{REPLACEMENT CHARACTER}[2Jno file\N{REPLACEMENT CHARACTER}"
    lines = drawn(found)
    assert any("│ mask:fire:[red]" in line or "┃ mask:fire:[red]" in line for line in lines)
    assert shown in lines
    with Progress() as progress:
        progress.show(found)
    told = capsys.readouterr().out
    assert "mask:fire:[red] 1: " in told and "\N{REPLACEMENT CHARACTER}[2Jno file" in told and "\x1b" not in told


def test_why_a_repository_cannot_be_read_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress, found = Progress(), Directory()
    for reason in ("s3://a is down after 2.1ms; wait", "s3://a is down after 1s; wait", "s3://b\x1b is down"):
        found.take({"unread": reason})
        progress.show(found)
    lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "s3://a is down after 2.1ms; wait",
        "s3://b\N{REPLACEMENT CHARACTER} is down",
    ]
