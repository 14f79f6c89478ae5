"""Whose turn it is to be traced."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings that hold for a model: one in `rate` requests is traced (0: none), `count` in all (-1: any number).

    `flags` are those of `protocol.trace`, 0 for a model that is not traced. A file gets `log_frequency` traces, all of
    them where that is 0. Where `begun` is another, they are counted anew.
    """

    flags: int = 0
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    begun: str = ""


class Sampler:
    """Takes turns. The caller lowers `left`; at 0 it traces the request and calls `taken`.

    `count_left` is how many more it traces, -1 any number.
    `ended` says that other settings hold now; only requests that are under way still come to an end.
    """

    __slots__ = ("count_left", "ended", "left", "sampling")

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.ended = False
        self.count_left = sampling.count
        self.left = sampling.rate if sampling.count else 0

    def taken(self) -> None:
        """Begin to count to the next one; with none left, `left` stays below 0."""
        if self.count_left > 0:
            self.count_left -= 1
        if self.count_left:
            self.left = self.sampling.rate
