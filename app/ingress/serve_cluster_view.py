"""Asks the controller for its plan, and one ingress of each node for its logs and for what is broken there."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from ray.serve.handle import DeploymentHandle

from app.doctor.finding import ERROR, Finding
from app.doctor.machine import CHECKS, findings_of, ray_here
from app.doctor.versions import compare, versions
from app.ingress.all_ingresses import all_ingresses, ask_each
from app.service.cluster_view import NodeFinding, NodeLog
from deployments.control.answer import answer
from deployments.lane.fleet import Fleet
from deployments.log.line_format import spelled_out
from deployments.log.model_log import ModelLog
from deployments.serve_internals import serve_logs_folder
from protocol.errors import Unavailable

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 2.0
_EXAMINATION_S: Final = 10.0
_KEPT_S: Final = 1.0
_READERS: Final = 2
_MAX_LINE: Final = 2000


Examination: TypeAlias = tuple[list[Finding], dict[str, str]]
"""What the checks of a node have found, and the versions there."""


class ServeClusterView:
    """The `ClusterView` of an ingress; `speaks_for_node` says whether this one tells others of its node.

    However many ask, the controller is asked once a second, and two logs are read, or examinations made, at a time,
    whoever asks.
    """

    def __init__(
        self, controller: DeploymentHandle, fleet: Fleet, node_id: str, speaks_for_node: Callable[[], bool]
    ) -> None:
        self._controller = controller
        self._fleet = fleet
        self._node_id = node_id
        self._speaks_for_node = speaks_for_node
        self._asking = asyncio.Lock()
        self._asked_s = float("-inf")
        self._report: dict[str, Any] | None = None
        self._readers = asyncio.Semaphore(_READERS)

    async def plan(self) -> dict[str, Any]:
        """Return the plan; see `ClusterView`."""
        async with self._asking:
            if time.monotonic() - self._asked_s > _KEPT_S:
                self._report = await self._ask()
                self._asked_s = time.monotonic()
        if self._report is None:
            raise Unavailable("the plan cannot be told at present")
        return self._report | {"replicas": self._fleet.replicas()}

    async def _ask(self) -> dict[str, Any] | None:
        try:
            report: dict[str, Any] = await answer(self._controller.report_plan.remote(), _TIMEOUT_S)
            return report
        except Exception as error:
            logger.warning("the plan could not be told: %s: %s", type(error).__name__, error)
            return None

    async def logs(self, model: str, count: int) -> list[NodeLog]:
        """Return the last lines on each node that has any; a node that does not answer in time has none."""
        found = {self._node_id: await self._read(model, count)}
        try:
            answers = await self._others("model_log", _TIMEOUT_S, model, count)
        except TimeoutError as error:
            answers = [error]
        found.update(answer for answer in answers if isinstance(answer, tuple))
        if any(isinstance(answer, TimeoutError) for answer in answers):
            logger.warning("not every node told its log of '%s' in %g s", model, _TIMEOUT_S)
        return [NodeLog(node_id, [(file, line) for file, line in lines]) for node_id, lines in found.items() if lines]

    async def answer(self, asking_node_id: str, model: str, count: int) -> tuple[str, list[tuple[str, str]]] | None:
        """Return this node's id and lines for another node; None when another ingress speaks for this one."""
        return (self._node_id, await self._read(model, count)) if self._answers(asking_node_id) else None

    async def examine(self) -> list[NodeFinding]:
        """Return what checks find on each node, and where these differ; see `ClusterView`."""
        found = {self._node_id: await self._examine()}
        silent = 0
        try:
            for answer in await self._others("examination", _EXAMINATION_S):
                found.update([answer] if isinstance(answer, tuple) else [])
                silent += isinstance(answer, BaseException)
        except TimeoutError:
            silent = -1
        findings = [NodeFinding(node, each) for node, (of_node, _) in found.items() for each in of_node]
        if silent:
            which = "not every ingress answers" if silent < 0 else f"{silent} ingresses do not answer"
            findings.append(NodeFinding("", Finding(ERROR, "nodes", which)))
        told = {node_id[:8]: of_versions for node_id, (_, of_versions) in found.items()}
        return findings + [NodeFinding("", each) for each in compare(told)]

    async def examination(self, asking_node_id: str) -> tuple[str, Examination] | None:
        """Return this node's id and examination for another node; None when another ingress speaks for this one."""
        return (self._node_id, await self._examine()) if self._answers(asking_node_id) else None

    def _answers(self, asking_node_id: str) -> bool:
        return asking_node_id != self._node_id and self._speaks_for_node()

    async def _others(self, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
        """Return what `ask_each` does of a method that is given this node's id first."""
        return await ask_each(all_ingresses(), method, self._node_id, *arguments, timeout_s=timeout_s)

    async def _examine(self) -> Examination:
        async with self._readers:
            return await asyncio.to_thread(_examine)

    async def _read(self, model: str, count: int) -> list[tuple[str, str]]:
        # Held while this node reads and no longer: nodes that ask each other would wait for each other.
        async with self._readers:
            return await asyncio.to_thread(_read, model, count)


def _read(model: str, count: int) -> list[tuple[str, str]]:
    """Return the last lines, as they are for people."""
    lines = ModelLog(model, Path(serve_logs_folder())).last(count, controller=True)
    return [(file, text[:_MAX_LINE]) for file, line in lines for text in spelled_out(line)][-count:]


def _examine() -> Examination:
    return findings_of(ray_here, *CHECKS), versions()
