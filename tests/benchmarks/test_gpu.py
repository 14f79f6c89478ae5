import pytest

from benchmarks.gpu import Measured, sizes
from benchmarks.gpu_models import Served, config
from benchmarks.load import Run
from benchmarks.profiles import role_of
from benchmarks.rows import Work


@pytest.mark.parametrize("clients", [[1], [16, 64, 1], [1, 4], [64]])
def test_each_size_of_batch_is_warmed_up_once(clients: list[int]) -> None:
    assert sorted(sizes(max(clients), clients)) == list(range(1, max(clients) + 1))


def test_what_few_clients_make_is_warmed_up_first() -> None:
    assert sizes(6, [1, 2, 6]) == [1, 2, 6, 5, 4, 3]


def test_a_model_says_nothing_of_the_gpu_unless_it_has_two_instances() -> None:
    assert "instance_group" not in config(Served("encoder", 1), "gpu", "heuristic")
    assert "kind: KIND_GPU count: 2" in config(Served("encoder", 2), "gpu", "heuristic")
    assert "kind: KIND_CPU count: 1" in config(Served("encoder", 1), "cpu", "heuristic")


def test_processes_are_told_by_their_titles() -> None:
    assert role_of("ray::ServeReplica:eagleray:Ingress", "m") == "ingress"
    assert role_of("ray::ServeReplica:m:v1", "m") == "replica"
    assert role_of("ray::ServeReplica:m_x2:v1", "m") is None
    assert role_of("raylet", "m") is None


def test_a_row_without_the_bare_rate_has_a_line_too() -> None:
    run = Run(100.0, 1000.0, 2000.0, 0, 10.0, 0.0, 1.0, None)
    work = Work("m", "http", 16)
    whole, part = (str(Measured("m", work, run, rate)) for rate in (200.0, None))
    assert " 0.500 " in whole
    assert len(whole) == len(part)
