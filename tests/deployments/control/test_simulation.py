"""The simulation behind docs/scaling.md, at a size that takes a moment."""

import pytest

from benchmarks.simulation import simulate


@pytest.mark.parametrize("seed", range(3))
def test_every_view_is_the_publishers_in_the_end(seed: int) -> None:
    assert simulate(nodes=20, replicas=200, models=40, seed=seed).converged


def test_news_of_a_change_do_not_grow_with_the_number_of_models() -> None:
    few, many = (simulate(nodes=5, replicas=50, models=models) for models in (10, 200))
    assert many.change_bytes < 1.5 * few.change_bytes
    assert many.first_bytes > 10 * few.first_bytes
