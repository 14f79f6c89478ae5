"""A second Eagleray in a cluster is refused as long as the first is there."""

import pytest

from deployments.control.sole_application import require_sole
from tests.deployments.control.test_state_store import Table


class FirstCome(Table):
    """Ray's tables, in this process."""

    def put_first(self, key: str, value: bytes) -> bytes:
        return self.setdefault(key, value)


def test_a_second_eagleray_is_refused_until_the_first_has_gone() -> None:
    table, running = FirstCome(), {"one", "other"}
    for _ in range(2):
        require_sole(table, "one", running.__contains__)
    with pytest.raises(RuntimeError, match="runs in this cluster already, as the Serve application 'one'"):
        require_sole(table, "other", running.__contains__)
    require_sole(table, "one", running.__contains__)
    running.remove("one")
    require_sole(table, "other", running.__contains__)
    with pytest.raises(RuntimeError, match="'other'"):
        require_sole(table, "one", running.__contains__)
