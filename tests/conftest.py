"""How the tests are divided between workers: a file to each, or a folder whose files share servers; longest first."""

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.serve_log import serve_log as serve_log

settings.register_profile("tests", max_examples=300, deadline=None)
settings.register_profile("soak", max_examples=5000, deadline=None)
settings.load_profile("tests")
"""For tests that try random damage and say no number of examples; `make soak` names the other profile."""

SHARING = tuple(f"tests/{name}" for name in ("conformance", "e2e/clients", "e2e/control", "e2e/hostile", "e2e/shared"))
"""The folders whose tests share servers: in two workers, these would start twice."""

WAITING = tuple(
    f"tests/{name}"
    for name in (
        "app/cli/test_ray_internals",
        "behaviours/",
        "conformance/",
        "deployments/test_serve",
        "e2e/",
        "eagleray/",
        "repository_loader/storage/",
    )
)
"""Tests that wait for servers: they come first, so that the others have the cores meanwhile."""


class SharedServersTogether(LoadScopeScheduling):
    """Gives a worker one file at a time, or one folder of files that share servers."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return folder if folder in SHARING else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedServersTogether:
    # Files in the order of their collection, not of their number of tests: those with servers have few and take long.
    config.option.loadscopereorder = False
    return SharedServersTogether(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(WAITING))
