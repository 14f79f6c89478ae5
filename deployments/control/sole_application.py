"""One Eagleray in a cluster: the processes of several on one node would share ports, counters and clients' regions."""

from collections.abc import Callable
from typing import Final, Protocol

from deployments.control.controller_options import CONTROLLER
from deployments.serve_internals import DELETING, application_states, application_status

_KEY: Final = "application"


class FirstComeTable(Protocol):
    """Values by key; see `ClusterTable`."""

    def put_first(self, key: str, value: bytes) -> bytes:
        """Keep a value where there is none, and return the one that is kept."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keep a value in place of the last."""
        ...


def is_eagleray(app: str) -> bool:
    """Whether a Serve application is an Eagleray that is to stay; blocks."""
    return CONTROLLER in application_states().get(app, {}) and application_status(app) != DELETING


def require_sole(table: FirstComeTable, app: str, runs: Callable[[str], bool] = is_eagleray) -> None:
    """See that the Serve application `app` is the only Eagleray of its cluster; blocks.

    Raises:
        RuntimeError: another one came first.
    """
    first = table.put_first(_KEY, app.encode()).decode()
    if first == app:
        return
    if runs(first):
        raise RuntimeError(
            f"Eagleray runs in this cluster already, as the Serve application '{first}'; "
            "a second one takes a cluster of its own"
        )
    table.put(_KEY, app.encode())
