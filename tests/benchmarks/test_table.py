"""What keeps a row from passing."""

import pytest

from benchmarks.load import Run
from benchmarks.rows import Row, Work
from benchmarks.table import Comparison


def runs(batch: float | None) -> list[Run]:
    return [Run(1000.0, 1.0, 2.0, 0, 1.0, 0.0, 1.0, batch)]


@pytest.mark.parametrize(
    ("ours", "peers", "complaints"),
    [
        (8.0, 1.0, []),
        (1.0, 8.0, ["not batched"]),
        (1.0, None, ["not batched"]),
        (None, 8.0, ["not batched"]),
        (1.0, 1.0, []),
    ],
)
def test_a_row_is_batched_where_the_peers_is(ours: float, peers: float | None, complaints: list[str]) -> None:
    many = Row("packed", Work("m", "http", 64), "m", floor=0.5)
    assert Comparison(many, runs(ours), runs(peers)).complaints == complaints


def test_few_clients_make_no_batches() -> None:
    few = Row("packed", Work("m", "http", 16), "m", floor=0.5)
    assert Comparison(few, runs(1.0), runs(8.0)).complaints == []
