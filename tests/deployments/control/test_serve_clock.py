"""When Serve's controller is started anew for its wall clock."""

from deployments.control.serve_clock import ServeClock


class Clocks:
    """The wall clock of Serve's controller and our monotonic one; an answer takes `answer_s`, half of it each way."""

    def __init__(self) -> None:
        self.wall_s, self.monotonic_s, self.answer_s, self.restarts = 1e9, 50.0, 0.0, 0
        self.watch = ServeClock(self.ask, self.restart, lambda: self.monotonic_s)

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    def ask(self) -> float:
        self.pass_s(self.answer_s / 2)
        told_s = self.wall_s
        self.pass_s(self.answer_s / 2)
        return told_s

    def restart(self) -> None:
        self.restarts += 1


def test_a_clock_that_is_set_back_by_an_hour_starts_the_controller_anew_once() -> None:
    clocks = Clocks()
    for _ in range(3):
        clocks.watch.look()
        clocks.pass_s(10)
    assert clocks.restarts == 0
    clocks.wall_s -= 3600
    for _ in range(3):
        clocks.watch.look()
        clocks.pass_s(10)
    assert clocks.restarts == 1


def test_a_clock_that_is_put_ahead_or_corrected_by_seconds_does_not() -> None:
    clocks = Clocks()
    for jump_s in (0, 3600, 5, -5, 0.5):
        clocks.wall_s += jump_s
        clocks.watch.look()
        clocks.pass_s(10)
    assert clocks.restarts == 0


def test_answers_that_take_long_do_not() -> None:
    clocks = Clocks()
    for answer_s in (0, 60, 0.1, 120, 0):
        clocks.answer_s = answer_s
        clocks.watch.look()
        clocks.pass_s(10)
    assert clocks.restarts == 0
