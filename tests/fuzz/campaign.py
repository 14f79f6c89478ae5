"""One campaign: the classes in turn until the count or the time is used up, and what was found."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.fuzz.classes import CLASSES
from tests.hostile.watch import Watch

MAX_VIOLATIONS = 20
_CHECK_EVERY = 50


@dataclass(slots=True)
class Result:
    """How many inputs of each class were tried, in what time, and every violation as text."""

    seed: int
    tried: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> list[str]:
        total = sum(self.tried.values())
        rows = [f"  {name:14} {count:8}" for name, count in self.tried.items()]
        speed = f"{total / self.seconds:.0f}/s" if self.seconds else "-"
        return [
            *self.violations,
            f"tried {total} inputs in {self.seconds:.1f} s ({speed}), seed {self.seed}",
            *rows,
            f"{len(self.violations)} violations",
        ]


def run(watch: Watch, count: int, seconds: float, seed: int) -> Result:
    """Try at most `count` inputs in at most about `seconds`; each input depends on the seed and its number alone."""
    result = Result(seed)
    names = list(CLASSES)
    started = time.monotonic()
    for number in range(count):
        if time.monotonic() - started >= seconds or len(result.violations) >= MAX_VIOLATIONS:
            break
        name = names[number % len(names)]
        sent, wrong = CLASSES[name](random.Random(f"{seed}/{number}"), watch)
        result.tried[name] += 1
        if wrong:
            result.violations.append(f"{name}, input {number} of seed {seed}: {wrong}\n  sent: {sent[:2000]!r}")
        if number % _CHECK_EVERY == _CHECK_EVERY - 1 and not _well(watch, number, result):
            break
    _well(watch, count, result)
    result.seconds = time.monotonic() - started
    return result


def _well(watch: Watch, number: int, result: Result) -> bool:
    try:
        watch.assert_well()
    except Exception as error:
        result.violations.append(f"the server is not well after input {number} of seed {result.seed}: {error!r}")
        return False
    return True
