"""Models that no command names: each ingress says that they, and the server, are ready, and answers for them, throughout."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from tests.checked_load import write_doubles
from tests.repeating import repeating
from tests.serving import Client, tensor, title_of, wait_until

PAUSE_S = 0.05
INGRESS = "ray::ServeReplica:eagleray:Ingress"
X = tensor("X", "INT32", [1], [5])
PLACED = 'parameters {{ key: "eagleray.placement" value {{ string_value: "{}" }} }}'


def write_bystanders(root: Path, isolated: str = "") -> list[str]:
    """Write `doubles`, which is isolated, with more configuration, and a packed and an embedded model; returns the names."""
    places = {
        "doubles": isolated,
        "beside_packed": PLACED.format("packed"),
        "beside_embedded": PLACED.format("embedded"),
    }
    for name, config in places.items():
        write_doubles(root, name, config)
    return list(places)


class Bystanders:
    """Asks every ingress of a cluster, on a connection to each, for the index, for answers, and whether it is ready."""

    def __init__(
        self, client: Callable[[], Client], processes: Callable[[], list[psutil.Process]], models: Sequence[str]
    ) -> None:
        self._client = client
        self._processes = processes
        self._models = models
        self._clients: dict[int, Client] = {}

    @contextmanager
    def watched(self, comes: Collection[str]) -> Iterator[list[str]]:
        """Ask until the block ends; yields what was wrong.

        The server need not be ready while a model that `comes` is LOADING.
        """
        wrong: list[str] = []
        self._connect()
        asks = [partial(self._ask, pid, comes, wrong) for pid in self._clients]
        with repeating(*asks, pause_s=PAUSE_S):
            yield wrong

    def _connect(self) -> None:
        """Have one connection to each ingress."""
        ingresses = {each.pid: each for each in self._processes() if title_of(each).startswith(INGRESS)}
        assert ingresses
        for pid in self._clients.keys() - ingresses.keys():
            self._clients.pop(pid).__exit__()

        def connected() -> bool:
            client = self._client()
            client.get("/")
            port = client.local_port
            for pid in ingresses.keys() - self._clients.keys():
                if any(each.raddr and each.raddr.port == port for each in ingresses[pid].net_connections("tcp")):
                    self._clients[pid] = client
                    break
            else:
                client.__exit__()
            return self._clients.keys() == ingresses.keys()

        if self._clients.keys() != ingresses.keys():
            wait_until(connected, "a connection to each ingress", poll_s=0.0)

    def _ask(self, pid: int, comes: Collection[str], wrong: list[str]) -> None:
        client, found = self._clients[pid], list[str]()
        rows = client.request("POST", "/v2/repository/index").json
        for name in self._models:
            states = [(row.get("state"), row.get("reason", "")) for row in rows if row["name"] == name]
            if states != [("READY", "")]:
                found.append(f"{name} is {states}")
            answer = client.infer(name, X)
            if answer.status != 200:
                found.append(f"{name} answers {answer.status} {answer.error}")
        health = client.get("/v2/health/ready").status
        if health != 200:
            rows += client.request("POST", "/v2/repository/index").json
            others = [row for row in rows if row.get("state") != "READY"]
            if not any(row["name"] in comes and row.get("state") == "LOADING" for row in others):
                found.append(f"the server is not ready ({health}): {others}")
        wrong += [f"{time.strftime('%X')} ingress {pid}: {each}" for each in found]
