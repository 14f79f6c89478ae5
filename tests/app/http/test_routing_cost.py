"""What the way of a request costs, in steps of the interpreter, whatever the number of models."""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from deployments.control.directory import READY, Directory
from tests.app.http.served import Served, entry
from tests.app.http.wire import infer


def steps(action: Callable[[], Any]) -> int:
    """Return how many instructions of Python's an action takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def test_a_request_takes_as_many_steps_among_a_thousand_models_as_alone() -> None:
    async def cost(count: int) -> tuple[int, int]:
        """Return the steps of a request whose head is new, and of one whose head is known."""
        served = Served()
        names = [f"m{number:04}" for number in range(count)]
        served.service.models.directory = Directory(
            "epoch", 1, True, {name: entry(name, (1, READY, "")) for name in names}
        )
        served.host.ready = {(name, 1) for name in names}
        request = infer(model=names[-1], body=b'{"inputs":[]}')
        found = steps(lambda: served._deliver(request)), steps(lambda: served._deliver(request))
        assert len(served.target.bodies) == 2
        return found

    asyncio.run(cost(1))  # Python 3.13 does not see all steps of the first
    costs = {asyncio.run(cost(count)) for count in (1, 100, 1000)}
    ((new, known),) = costs
    print(f"{new} steps where the head is new, {known} where it is known")
    assert known < new / 2
