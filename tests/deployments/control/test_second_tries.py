"""What had been loaded is tried again where it fails, later each time, and nothing else is."""

from typing import Any

from deployments.control.second_tries import SecondTries
from repository_loader.deployment_plan import Place

GROUP, INGRESS = ("eagleray-packed", "models"), ("", "ingress-1")


class Tried:
    """Second tries by a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.tries = SecondTries(lambda: self.now_s)

    def tell(self, *rows: tuple[str, str], place: Place = GROUP) -> None:
        """Tell of versions 1, each with why it did not load and its digest."""
        told: list[list[Any]] = [["m", 1, reason, 0.5, digest] for reason, digest in rows]
        self.tries.take(place, told)

    def seconds_until_due(self, longest_s: int = 100) -> int | None:
        """Let seconds pass until something is due, and return how many."""
        for passed_s in range(longest_s):
            if self.tries.due():
                return passed_s
            self.now_s += 1
        return None


def test_what_had_been_loaded_is_tried_again_later_each_time() -> None:
    tried = Tried()
    tried.tell(("", "one"))
    found = []
    for _ in range(6):
        tried.tell(("no disk", "one"))
        found.append(tried.seconds_until_due())
    assert found == [5, 10, 20, 40, 60, 60]
    tried.tell(("", "one"))
    tried.tell(("no disk", "one"))
    assert tried.seconds_until_due() == 5, "it was loaded in between"


def test_a_process_that_is_told_is_told_once_until_it_says_what_came_of_it() -> None:
    tried = Tried()
    tried.tell(("", "one"))
    tried.tell(("no disk", "one"))
    tried.now_s += 5
    assert tried.tries.due() == {GROUP: [("m", 1)]}
    assert tried.seconds_until_due() is None
    for _ in range(3):  # it is asked every second
        tried.tell(("no disk", "one"))
    assert tried.seconds_until_due() == 10


def test_what_was_never_loaded_like_this_is_not_tried_again() -> None:
    tried = Tried()
    tried.tell(("no module", "one"))
    assert tried.seconds_until_due() is None
    tried.tell(("", "two"))
    tried.tell(("no module", "three"))
    assert tried.seconds_until_due() is None
    tried.tell(("", "two"), ("no disk", "one"))  # what could not be loaded in the place of what serves on
    assert tried.seconds_until_due() is None


def test_each_process_that_failed_is_told() -> None:
    tried = Tried()
    tried.tell(("", "one"), place=INGRESS)
    tried.tell(("no disk", "one"))
    tried.tell(("no disk", "one"), place=("", "ingress-2"))
    tried.now_s += 5
    assert tried.tries.due().keys() == {GROUP, ("", "ingress-2")}
    tried.tell(("", "one"), ("no disk", "one"))  # two replicas of the group, of which one has loaded it
    assert tried.seconds_until_due() == 10
    tried.tell(("", "one"), ("", "one"))
    assert tried.seconds_until_due() is None


def test_models_and_processes_that_are_gone_are_forgotten() -> None:
    tried = Tried()
    tried.tell(("", "one"))
    tried.tell(("no disk", "one"))
    assert tried.seconds_until_due() == 5
    tried.now_s += 3601
    assert tried.tries.due() == {} and tried.tries._failures == {}
    tried.tries.forget_all_but({"another"})
    assert not tried.tries.has_loaded("m", 1, "one") and tried.tries._loaded == {}
