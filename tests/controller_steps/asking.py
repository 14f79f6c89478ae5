"""Clients that ask one model all the time, by HTTP and by gRPC, and remember when each request began and its answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.serving import wait_until

PAUSE_S = 0.02


class Asked(NamedTuple):
    """A request: when it was sent, and the number that came back; `error` is what came in its place."""

    at_s: float
    tag: int
    error: str


class Addresses(NamedTuple):
    """Where a cluster is asked, by either protocol."""

    http: str
    grpc: str


class Asking:
    """Both clients, of a model that answers with the number TAG."""

    def __init__(self, addresses: Addresses, model: str) -> None:
        self.asked: list[Asked] = []
        self._model = model
        self._stop = threading.Event()
        http = http_client.InferenceServerClient(addresses.http, network_timeout=60, connection_timeout=60)
        grpc = grpc_client.InferenceServerClient(addresses.grpc)
        self._threads = [
            threading.Thread(target=self._run, args=(module, client), name=name)
            for name, module, client in (("http", http_client, http), ("grpc", grpc_client, grpc))
        ]

    def _run(self, module: Any, client: Any) -> None:
        x = module.InferInput("X", [1], "INT32")
        x.set_data_from_numpy(np.zeros(1, np.int32))
        with client:
            while not self._stop.wait(PAUSE_S):
                at_s = time.monotonic()
                try:
                    tag = int(client.infer(self._model, [x]).as_numpy("TAG")[0])
                except InferenceServerException as error:
                    self.asked.append(Asked(at_s, 0, f"{threading.current_thread().name}: {error}"))
                except Exception as error:
                    self.asked.append(Asked(at_s, 0, f"{threading.current_thread().name}: {error!r}"))
                else:
                    self.asked.append(Asked(at_s, tag, ""))

    def tags(self, last: int) -> set[int]:
        """Return the latest answers."""
        return {each.tag for each in self.asked[-last:]}

    @contextmanager
    def running(self) -> Iterator["Asking"]:
        """Ask until the block ends, and some times before and after."""
        for thread in self._threads:
            thread.start()
        try:
            self.wait_for_more("answers before")
            yield self
            self.wait_for_more("answers after")
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(90)
                assert not thread.is_alive(), f"a request of {thread.name} was never answered"

    def wait_for_more(self, what: str, count: int = 10) -> None:
        """Wait until so many more were answered."""
        before = len(self.asked)
        wait_until(lambda: len(self.asked) >= before + count, what, 60)

    def wrong(
        self, before: set[int], after: set[int], acknowledged_s: float, forgives: Callable[[str], bool]
    ) -> list[Asked]:
        """Return what failed, and what had another answer than those that are right before, or after, a command."""
        return [
            each
            for each in self.asked
            if (each.error and not forgives(each.error))
            or (not each.error and each.tag not in (after if each.at_s > acknowledged_s else before | after))
        ]
