"""Sharing a model's requests otherwise on a client's wish: what becomes of the desired state."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from deployments.control.canary import Canary, Rules
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, with_traffic
from protocol.errors import InvalidArgument, NotFound
from repository_loader.traffic import Traffic, read_percentages, read_weights

logger = logging.getLogger(__name__)

_MEMBERS: Final = ("weights", "shadow", "canary", "clear")


class TrafficCommands:
    """Does them one after the other; one that comes again under the same id is not done twice."""

    def __init__(self, state: CurrentState) -> None:
        self._state = state

    async def change(self, command: str, name: str, given: Mapping[str, Any]) -> None:
        """Change a model's `weights` or `shadow` (an empty object: none), begin a `canary`, or `clear` all of it.

        What is not given stays as it is, but a canary that runs ends.

        Raises:
            NotFound: no such model is loaded.
            InvalidArgument: a version is none of the model's, or the rest makes no sense.
        """
        async with self._state.lock:
            desired = await self._state.until(lambda desired: desired)
            if command in desired.outcomes:
                return
            changed = changed_traffic(desired, name, given, time.time(), command)
            await self._state.change(changed)
        logger.info("the traffic of '%s' is changed: %s", name, dict(given))


def changed_traffic(
    desired: DesiredState, name: str, given: Mapping[str, Any], at_s: float, command: str = ""
) -> DesiredState:
    """Return the desired state after a change; see `TrafficCommands.change`."""
    model = desired.snapshot.models.get(name)
    if model is None or not model.packages:
        raise NotFound(f"Request for unknown model: '{name}' is not found")
    versions = [package.version for package in model.packages]
    now = desired.traffic.get(name, Traffic())
    past = desired.canaries.get(name)
    try:
        unknown = sorted(given.keys() - set(_MEMBERS))
        if unknown or not given:
            what = f"'{unknown[0][:64]}' is none" if unknown else "there is none"
            raise ValueError(f"{what} of {', '.join(_MEMBERS)}")
        if "canary" in given or "clear" in given:
            if len(given) > 1:
                raise ValueError("'canary' and 'clear' stand alone")
            if "clear" in given:
                stopped = None if past is None else past.stopped(at_s)
                return with_traffic(desired, name, None, stopped, command)
            canary = _canary(given["canary"], now, versions, past, at_s)
            return with_traffic(desired, name, canary.traffic, canary, command)
        weights = read_weights(given["weights"]) if "weights" in given else now.weights
        shadow = read_percentages(given["shadow"]) if "shadow" in given else now.shadow
        traffic = Traffic(weights, shadow)
        _require_known(traffic, versions)
        if shadow and not traffic.shares(versions):
            raise ValueError("all versions would get copies only, and none would answer")
    except ValueError as error:
        raise InvalidArgument(f"the traffic of model '{name}' stays as it is: {error}") from None
    return with_traffic(desired, name, traffic, None if past is None else past.stopped(at_s), command)


def _canary(given: Any, now: Traffic, versions: list[int], past: Canary | None, at_s: float) -> Canary:
    if not isinstance(given, Mapping):
        raise ValueError("'canary' must be an object")
    rules = Rules.from_dict(given)
    _require_known(Traffic({rules.version: 1.0}), versions)
    # Of a canary that runs, what the others had before it.
    if past is not None and past.measured:
        now, past = replace(now, weights=past.rest), past.stopped(at_s)
    return Canary.begun(rules, now, versions, past, at_s)


def _require_known(traffic: Traffic, versions: list[int]) -> None:
    if unknown := traffic.unknown(versions):
        raise ValueError(f"there is no version {unknown[0]}, but {', '.join(map(str, sorted(versions)))}")
