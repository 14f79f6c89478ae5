"""What is measured against what, and how fast Eagleray has to be."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

PLACEMENTS = ("isolated", "embedded", "packed")

MIN_MEAN_BATCH = 4.0
"""At BATCHED_CONCURRENCY clients, an execution must serve so many requests on average, as proof that they are batched,
unless the peer's serve fewer too."""
BATCHED_CONCURRENCY = 64

RATE_RPS = 2000
"""The fixed rate at which tails are measured."""
MIN_SHARED_MEMORY_GAIN = 1.3
"""A row by shared memory must reach so many times the rate of the same row without it."""

COMPUTE_S = 15.0
"""Models that compute are measured for so long: a batch takes up to 0.4 s."""

PeerName = Literal["triton", "bare"]


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """What one run asks of one server.

    `concurrency` clients send one request after the other or, with `rate_rps`, so many requests a second in all. With
    `shared_memory` the tensors lie in system shared memory. A run takes at least `least_s` seconds. The load generator
    has `threads`, one connection each at least.
    """

    model: str
    protocol: str
    concurrency: int
    rate_rps: int = 0
    shared_memory: bool = False
    least_s: float = 0.0
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One work of Eagleray in one placement, beside the same work of a peer.

    The servers of a row hold the models of all rows with the same `company` and placement.
    """

    placement: str
    work: Work
    peer_model: str
    floor: float | None = None
    """The least throughput, as a multiple of the peer's; None for rows that only inform."""
    p99_ceiling: float | None = None
    """The highest p99 latency, as a multiple of the peer's."""
    peer: PeerName = "triton"
    company: str = "small"

    @property
    def peer_work(self) -> Work:
        """What the peer does meanwhile."""
        return replace(self.work, model=self.peer_model)


def by_clients(
    protocol: str, placement: str, models: str, floors: dict[int, float | None], *, shared_memory: bool = False
) -> Iterable[Row]:
    """Return a row for each number of clients, given with its floor; `models` is ours, or ours/Triton's."""
    model, _, peer_model = models.partition("/")
    for concurrency, floor in floors.items():
        work = Work(model, protocol, concurrency, shared_memory=shared_memory)
        yield Row(placement, work, peer_model or model, floor)


def at_a_rate(placement: str, p99_ceiling: float | None) -> Iterable[Row]:
    """Return the rows that send one-row requests at a fixed rate, by both protocols."""
    for protocol in ("http", "grpc"):
        yield Row(placement, Work("mlp_onnx", protocol, 4, RATE_RPS), "mlp_py", None, p99_ceiling)


def compute(placement: str) -> Iterable[Row]:
    """Return the rows of models that compute for milliseconds, beside ONNX Runtime alone in one process."""
    for model, concurrency in (("encoder", 16), ("resnet50", 8)):
        work = Work(model, "http", concurrency, least_s=COMPUTE_S)
        yield Row(placement, work, model, 0.95, peer="bare", company="compute")


# Triton's package has no ONNX backend: its mlp_py runs the same file with ONNX Runtime.
ROWS = (
    *by_clients("http", "isolated", "mlp_onnx/mlp_py", {1: 1.4, 16: 1.5, 64: 1.2}),
    *by_clients("http", "isolated", "mlp_py", {1: 1.0, 16: 1.0, 64: 1.0}),
    *by_clients("http", "isolated", "pair_py", {1: 1.0, 16: 1.0, 64: 1.0}),
    *by_clients("http", "isolated", "identity_img", {1: 1.0, 8: 1.0}),
    *by_clients("http", "isolated", "ensemble_py", {1: 1.0, 16: 1.0, 64: 1.0}),
    *by_clients("grpc", "isolated", "mlp_onnx/mlp_py", {1: 1.4, 16: 1.3, 64: 1.2}),
    *by_clients("grpc", "isolated", "identity_img", {1: 1.3, 8: 1.4}),
    *by_clients("http", "embedded", "mlp_onnx/mlp_py", {1: 1.7, 16: 2.0, 64: 2.0}),
    *by_clients("http", "embedded", "identity_img", {1: 1.0, 8: 1.0}),
    *by_clients("grpc", "embedded", "mlp_onnx/mlp_py", {1: 1.3, 16: 1.5, 64: 1.6}),
    *by_clients("grpc", "embedded", "identity_img", {1: 1.0, 8: 1.0}),
    *by_clients("http", "packed", "ensemble_py", {1: 1.5, 16: 1.5, 64: 1.5}),
    *by_clients("http", "packed", "bls_py", {1: 1.2, 16: 1.2, 64: 1.2}),
    *by_clients("http", "packed", "pair_py", {1: 1.0, 16: 1.0, 64: 1.0}),
    *by_clients("http", "packed", "identity_img", {1: 1.0, 8: 1.0}),
    *by_clients("grpc", "packed", "identity_img", {1: 1.3, 8: 1.4}),
    *(
        row
        for placement in PLACEMENTS
        for protocol in ("http", "grpc")
        for row in by_clients(protocol, placement, "identity_img", {1: 1.3, 8: 1.3}, shared_memory=True)
    ),
    *at_a_rate("isolated", 1.5),
    *at_a_rate("packed", 1.5),
    *at_a_rate("embedded", None),
    *(row for placement in PLACEMENTS for row in compute(placement)),
)
MODELS = tuple(dict.fromkeys(row.work.model for row in ROWS))
"""Eagleray's models, in the order of the rows."""


def models_of(rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return the models that Eagleray and Triton have to load for the rows."""
    ours = sorted({row.work.model for row in rows})
    return ours, sorted({row.peer_model for row in rows if row.peer == "triton"})
