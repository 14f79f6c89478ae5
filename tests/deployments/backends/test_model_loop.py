import asyncio
import logging
import threading
from concurrent.futures import CancelledError

import pytest

from deployments.backends.python.model_loop import ModelLoop


async def value():
    return 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(3)], ids=["exit", "interrupt"])
def test_what_would_end_a_loop_fails_its_request_only(error):
    async def fail():
        raise error

    loop = ModelLoop("m_0")
    with pytest.raises(RuntimeError, match=f"{type(error).__name__}: 3"):
        loop.submit(fail()).result(10)
    assert loop.submit(value()).result(10) == 1
    loop.close()


def test_a_cancellation_out_of_a_model_fails_its_request_only():
    async def fail():
        raise asyncio.CancelledError

    loop = ModelLoop("m_0")
    with pytest.raises(CancelledError):
        loop.submit(fail()).result(10)
    assert loop.submit(value()).result(10) == 1
    loop.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exit_of_a_task_that_the_model_started_leaves_the_loop_running():
    async def leave():
        raise SystemExit(3)

    async def start():
        asyncio.get_running_loop().create_task(leave())
        await asyncio.sleep(0)

    loop = ModelLoop("m_0")
    loop.submit(start()).result(10)
    assert loop.submit(value()).result(10) == 1
    loop.close()


def test_close_does_not_wait_for_a_task_that_will_not_end(caplog):
    release = threading.Event()
    started = threading.Event()

    async def stubborn():
        started.set()
        release.wait(10)

    loop = ModelLoop("m_0")
    future = loop.submit(stubborn())
    assert started.wait(10)
    with caplog.at_level(logging.ERROR):
        loop.close(timeout_s=0.01)
    assert "the event loop of m_0 still runs after 0.01 s and is abandoned" in caplog.text
    release.set()
    assert future.result(10) is None
