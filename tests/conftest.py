"""How the tests are shared between workers: one has all that use the servers of `tests/e2e`, so that each starts once."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class OneWorkerForServers(LoadScopeScheduling):
    """Gives a worker one file at a time, but all files of `tests/e2e` together."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/e2e" if nodeid.startswith("tests/e2e/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorkerForServers:
    return OneWorkerForServers(config, log)
