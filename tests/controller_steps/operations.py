"""An operation on a server whose controller dies at some step of it, and what must be true of it all the same."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count

from tests.controller_steps.asking import Addresses, Asking
from tests.controller_steps.bystanders import Bystanders
from tests.controller_steps.steps import Kill, Step, Steps
from tests.serving import wait_until

ENDS_S = 180.0
WHENS = tuple(os.environ.get("STEP_WHENS", "before after").split())


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """What a client, or a change of files, has the cluster do.

    `command` does it, and raises unless its answer is as it should be; `ended` says whether the cluster is where it was
    told to go. `model` is asked meanwhile: until the command is answered any of `before` and `after` are right, then
    those of `after`, and when all has ended exactly those of `last`. Where `failure` is in an error, it is the model's.
    The models that it `brings` are loaded for the first time: the server is not ready before they are.
    """

    name: str
    command: Callable[[], None]
    ended: Callable[[], bool]
    model: str = ""
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    failure: str = ""
    brings: tuple[str, ...] = ()
    prepare: Callable[[], None] = _nothing


@dataclass
class Walked:
    """What was done so far."""

    operations: int = 0
    killed: int = 0
    asked: int = 0
    wrong: list[str] = field(default_factory=list)


class Walk:
    """Does operations, one after the other, on one cluster."""

    def __init__(self, addresses: Addresses, steps: Steps, bystanders: Bystanders) -> None:
        self._addresses = addresses
        self._steps = steps
        self._bystanders = bystanders
        self.walked = Walked()

    def do(self, operation: Operation, kills: Sequence[Kill] = ()) -> list[Step]:
        """Do it once; returns the steps at which a controller died.

        What was wrong is noted in `walked`, with the step.
        """
        began_s = time.monotonic()
        wrong: list[str] = []
        with ExitStack() as stack:
            operation.prepare()
            beside = stack.enter_context(self._bystanders.watched(operation.brings))
            asking = (
                stack.enter_context(Asking(self._addresses, operation.model).running()) if operation.model else None
            )
            self._steps.arm(kills)
            try:
                operation.command()
                acknowledged_s = time.monotonic()
                self._wait_for_the_end(operation, asking)
            except Exception as error:
                acknowledged_s = time.monotonic()
                wrong.append(f"{type(error).__name__}: {error}")
        if asking is not None:
            forgives = (lambda error: operation.failure in error) if operation.failure else (lambda error: False)
            late = asking.wrong(operation.before, operation.after, acknowledged_s, forgives)
            wrong += [f"{each.at_s - acknowledged_s:+.2f} s: {each.tag} {each.error}" for each in late[:5]]
            self.walked.asked += len(asking.asked)
        wrong += beside[:5]
        died, done = self._steps.died(), self._steps.done()
        if not done:
            wrong.append("the controller did it in no step that is counted")
        self._steps.disarm()
        self.walked.operations += 1
        self.walked.killed += len(died)
        at = ", ".join(map(str, died)) or "nobody died"
        print(f"{operation.name}: {at}; {len(done)} steps, {time.monotonic() - began_s:.1f} s", flush=True)
        if not kills:
            print("   ", *(step.name for step in done), flush=True)
        for each in wrong:
            print("    WRONG", each, flush=True)
            self.walked.wrong.append(f"{operation.name}, {at}: {each}")
        return died

    def _wait_for_the_end(self, operation: Operation, asking: Asking | None) -> None:
        def ended() -> bool:
            return all(operation.ended() for _ in range(4))  # both ingresses, most likely

        died = -1
        while died != (died := len(self._steps.died())):
            wait_until(ended, f"the end of '{operation.name}'", ENDS_S)
            if asking is not None and operation.last:
                wait_until(lambda: asking.tags(10) == operation.last, f"answers of {operation.last}", ENDS_S)
            # It may die when all looks well, and its successor change that.
            wait_until(lambda: not self._just_died(), "another controller", ENDS_S)
            self._steps.wait_quiet()
        assert ended(), "it did not stay so"

    def _just_died(self) -> bool:
        done = self._steps.done()
        return bool(done) and bool(done[-1].dies)

    def through(self, operations: Sequence[Operation], numbers: Sequence[int] = ()) -> None:
        """Do all of them again and again, with a death at each step, or those of some numbers, before and after it."""
        open_ones = {(operation.name, when) for operation in operations for when in WHENS}
        for number in numbers or count(1):
            for when in WHENS:
                if not any(each == when for _, each in open_ones):
                    continue
                for operation in operations:
                    kills = [(number, when)] if (operation.name, when) in open_ones else []
                    if not self.do(operation, kills):
                        open_ones.discard((operation.name, when))
            if not open_ones:
                return
