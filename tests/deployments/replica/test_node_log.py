"""Log settings reach every process of a node."""

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path

from deployments.log.log_options import LogOptions
from deployments.replica.node_log import NodeLog
from tests.serving import wait_until

REPLICA = """
import asyncio, logging, sys
from pathlib import Path
from deployments.log.log_options import LogOptions
from deployments.replica.node_log import NodeLog

async def run():
    log = NodeLog(Path(sys.argv[1]), LogOptions(log_file=sys.argv[2]))
    log.follow(asyncio.get_running_loop())
    while True:
        logging.getLogger("deployments").debug("verbose")
        logging.getLogger("deployments").info("information")
        await asyncio.sleep(0.05)

asyncio.run(run())
"""


def test_what_an_ingress_sets_holds_in_other_processes_of_the_node(serve_log: Path, tmp_path: Path) -> None:
    path = tmp_path / "log-file"

    def logged() -> set[str]:
        found = set()
        for line in path.read_text().splitlines()[-3:] if path.exists() else ():
            found.add(json.loads(line)["message"] if line.startswith("{") else line.split('"')[1])
        return found

    ingress = NodeLog(tmp_path, LogOptions())
    process = subprocess.Popen([sys.executable, "-c", REPLICA, str(tmp_path), str(path)])
    try:
        wait_until(lambda: logged() == {"information"}, "what is set at the start")
        ingress.change(LogOptions(log_file=str(path), log_verbose_level=1, log_info=False, log_format="json"))
        wait_until(lambda: logged() == {"verbose"}, "what is set then")
        assert path.read_text().splitlines()[-1].startswith("{")
        ingress.change(LogOptions(log_file=str(path)))
        wait_until(lambda: logged() == {"information"}, "what is set at last")
    finally:
        process.kill()
        process.wait()


def test_a_process_that_starts_later_has_the_settings_of_the_node(serve_log: Path, tmp_path: Path) -> None:
    NodeLog(tmp_path, LogOptions()).change(LogOptions(log_error=False))

    async def start() -> bool:
        log = NodeLog(tmp_path, LogOptions())
        log.follow(asyncio.get_running_loop())
        log.close()
        return log.is_on(logging.makeLogRecord({"levelno": logging.ERROR}))

    assert asyncio.run(start()) is False


def test_settings_that_found_no_room_are_written_when_there_is_some(serve_log: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        ingress, replica = NodeLog(tmp_path / "node", LogOptions()), NodeLog(tmp_path / "node", LogOptions())
        ingress.change(LogOptions(log_error=False, log_verbose_level=1))  # a folder that is not there has no room
        ingress.change(LogOptions(log_error=False))
        (tmp_path / "node").mkdir()
        async with asyncio.timeout(10):
            while not (tmp_path / "node/log-settings").exists():
                await asyncio.sleep(0.05)
        replica.look()
        assert replica.is_on(logging.makeLogRecord({"levelno": logging.ERROR})) is False
        assert replica.is_on(logging.makeLogRecord({"levelno": logging.DEBUG})) is False
        ingress.change(LogOptions())
        replica.look()
        assert replica.is_on(logging.makeLogRecord({"levelno": logging.ERROR})) is True
        ingress.close()

    asyncio.run(scenario())


def test_settings_that_a_newer_ingress_has_written_hold_as_far_as_they_are_known(
    serve_log: Path, tmp_path: Path
) -> None:
    log = NodeLog(tmp_path, LogOptions())
    (tmp_path / "log-settings").write_text(json.dumps({"log_verbose_level": 1, "log_colours": True}))
    log.look()
    assert log.is_on(logging.makeLogRecord({"levelno": logging.DEBUG}))
    log.close()
