"""What all tests with servers of their own have; each folder beside this file has servers that its tests share."""

from pathlib import Path

import pytest

from tests.repositories import write_examples

PLACEMENTS = ("auto", "packed", "embedded")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ray)
            # A test may be the one that starts a server.
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def example_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples."""
    return write_examples(tmp_path_factory.mktemp("examples"))
