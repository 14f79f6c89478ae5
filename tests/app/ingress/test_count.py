"""How many ingresses run on each node."""

import pytest

from app.ingress.count import automatic, ingresses_per_node
from app.settings import Settings


@pytest.mark.parametrize(
    ("placement", "cores", "expected"),
    [
        ("isolated", [], 1),
        ("isolated", [1], 1),
        ("isolated", [4], 1),
        ("isolated", [7], 1),
        ("isolated", [8], 2),
        ("packed", [16], 4),
        ("isolated", [64], 16),
        ("isolated", [256], 16),
        ("isolated", [2, 64, 64], 10),
        ("embedded", [64], 1),
    ],
)
def test_one_for_every_four_cores_of_the_average_node(placement: str, cores: list[float], expected: int) -> None:
    assert automatic(placement, cores) == expected


def test_the_setting_wins() -> None:
    settings = Settings(model_repository=("/models",), placement="embedded", ingresses_per_node=3)
    assert ingresses_per_node(settings) == 3
