"""How the tests are shared between workers: a file to each, but all files that share servers to one; longest first."""

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.serve_log import serve_log as serve_log

settings.register_profile("tests", max_examples=300, deadline=None)
settings.register_profile("soak", max_examples=5000, deadline=None)
settings.load_profile("tests")
"""For tests that try random damage and say no number of examples; `make soak` names the other profile."""

SHARING = {
    "bad_input",
    "batching",
    "dashboards",
    "decoupled",
    "ensembles",
    "faults",
    "hostile_grpc",
    "hostile_http",
    "inference",
    "log_rotation",
    "metadata",
    "repository_index",
    "response_cache",
    "sequences",
    "statistics",
}
"""The files of `tests/e2e` whose tests share the servers of its `conftest.py`: in two workers, these would start twice."""

SHARING_OPEN = {"clients", "perf_analyzer"}
"""The files of `tests/e2e` whose tests share the servers that let clients register shared memory."""


class SharedServersTogether(LoadScopeScheduling):
    """Gives a worker one file at a time, and in the same place the files that share servers."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = file.removeprefix("tests/e2e/test_").removesuffix(".py")
        return "tests/e2e" if name in SHARING else "tests/e2e/open" if name in SHARING_OPEN else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedServersTogether:
    # Files in the order of their collection, not of their number of tests: those with servers have few and take long.
    config.option.loadscopereorder = False
    return SharedServersTogether(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/e2e/", "tests/behaviours/", "tests/conformance/")))
