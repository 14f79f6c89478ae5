"""What Python models in processes of their own print and log."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from deployments.log.log_options import LogOptions
from deployments.log.process_log import ProcessLog
from tests.deployments.replica.hosted_models import unfrozen as unfrozen
from tests.deployments.replica.own_processes import Models
from tests.deployments.replica.own_processes import models as models

LOGS = """
def answer(self, x):
    pb_utils.Logger.log_verbose(f"verbose {x}")
    pb_utils.Logger.log_warn(f"warning {x}")
    if x == 2:
        import logging
        logging.getLogger("deployments.example").error("ours", exc_info=ValueError("theirs"))
    if x == 3:
        raise KeyError("its own")
    return [os.getpid()]
"""


FORKS = """
def answer(self, x):
    print("of the model")
    child = os.fork()
    if not child:
        print("of a process that it has forked")
        os._exit(0)
    os.waitpid(child, 0)
    return [1]
"""


def test_what_a_model_prints_is_in_the_log_and_needs_no_lock_in_a_process_that_it_has_forked(
    models: Models, serve_log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ProcessLog(LogOptions())

    async def run() -> None:
        models.add("forks", FORKS)
        async with models.hosted() as call, asyncio.timeout(60):
            await call("forks", 1)
            while "of the model" not in serve_log.read_text():
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert "forked" not in serve_log.read_text()
    assert "of a process that it has forked\n" in capfd.readouterr().out


def test_log_settings_hold_for_a_model_in_a_process_of_its_own(models: Models, serve_log: Path) -> None:
    log = ProcessLog(LogOptions(log_format="json"))

    async def logged(text: str) -> None:
        async with asyncio.timeout(60):
            while f'"{text}"' not in serve_log.read_text():
                await asyncio.sleep(0.01)

    async def run() -> None:
        models.add("one", LOGS).add("other", LOGS)
        async with models.hosted() as call:
            assert await call("one", 1) != [os.getpid()]
            await logged("warning 1")
            log.apply(LogOptions(log_format="json", log_verbose_level=1, log_warning=False))
            await call("other", 2)
            await logged("ours")
            await call.error("one", 3)
            await logged("execute() of model instance 'one_0' failed, request ids ['']")

    asyncio.run(run())
    keys = ("level", "message", "model", "version", "source")
    rows = [json.loads(line) for line in serve_log.read_text().splitlines()]
    failure = rows.pop()
    assert (failure["model"], failure["version"], failure["level"]) == ("one", 1, "ERROR")
    assert failure["traceback"].endswith("KeyError: 'its own'")
    found = [tuple(row.get(key) for key in keys) for row in rows if row["message"] not in ("ours", "verbose 3")]
    assert [(*row[:4], row[4].partition(":")[0]) for row in sorted(found[:2]) + found[2:]] == [
        ("INFO", "successfully loaded 'one' version 1", "one", 1, "model_host.py"),
        ("INFO", "successfully loaded 'other' version 1", "other", 1, "model_host.py"),
        ("WARNING", "warning 1", "one", 1, "model.py"),
        ("VERBOSE", "verbose 2", "other", 1, "model.py"),
    ]
    [ours] = [row for row in rows if row["message"] == "ours"]
    assert ours["traceback"].endswith("ValueError: theirs")


REDIRECTS = """
def answer(self, x):
    import contextlib, io
    with contextlib.redirect_stdout(io.StringIO()) as text:
        print("captured")
    return [len(text.getvalue())]
"""


def test_a_model_may_catch_what_it_prints(models: Models) -> None:
    async def run() -> None:
        models.add("redirects", REDIRECTS)
        async with models.hosted() as call:
            assert await call("redirects", 0) == [len("captured\n")]

    asyncio.run(run())


LOSES_OUTPUT = """
def answer(self, x):
    threading.Thread(target=threading.Event().wait, args=(60,)).start()
    {statement}
    return [os.getpid()]
"""


@pytest.mark.parametrize(
    "statement",
    ["sys.stdout.close()", "sys.stderr.close()", "sys.stdout = sys.stderr = None"],
    ids=["stdout closed", "stderr closed", "none"],
)
def test_a_process_whose_streams_the_model_has_taken_away_ends(
    models: Models, caplog: pytest.LogCaptureFixture, statement: str
) -> None:
    async def run() -> None:
        models.add("loses", LOSES_OUTPUT.format(statement=statement))
        async with models.hosted() as call:
            await call("loses", 0)

    asyncio.run(run())
    assert "did not end" not in caplog.text and "still runs" not in caplog.text
