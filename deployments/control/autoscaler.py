"""Decides how many replicas each autoscaled deployment has, from what the ingresses say is under way."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from repository_loader.autoscaling import Autoscaling
from repository_loader.deployment_plan import DeploymentPlan, Place

REPORT_S: Final = 0.5
"""How often an ingress reports."""
_FORGOTTEN_S: Final = 3.0


class _Scaled:
    """One deployment: its rules, how many replicas were asked for, and what would have done of late."""

    def __init__(self, rules: Autoscaling, count: int) -> None:
        self.rules = rules
        self.count = count
        self.wanted: deque[tuple[float, int]] = deque()
        self.ongoing = 0.0

    def decide(self, ongoing: float, sent_per_s: float, now_s: float, least: int) -> bool:
        """Take a load; returns whether another number of replicas shall run."""
        # What was asked until now is seldom known to be starting; it is looked at before the next time.
        least = max(least, min(self.count, 1)) if self.ongoing else least
        self.ongoing = ongoing
        wanted = max(least, self.rules.wanted(ongoing, sent_per_s, self.count))
        # Only what no later number exceeds can be the most of the time to come.
        while self.wanted and self.wanted[-1][1] <= wanted:
            self.wanted.pop()
        self.wanted.append((now_s, wanted))
        while self.wanted[0][0] < now_s - self.rules.downscale_delay_s:
            self.wanted.popleft()
        most = self.wanted[0][1]
        count = wanted if wanted > self.count else min(self.count, most)
        changed, self.count = count != self.count, count
        return changed

    def stood_still(self, still_s: float, now_s: float) -> None:
        """Leave a time out of which nothing is known."""
        self.wanted = deque((min(at_s + still_s, now_s), count) for at_s, count in self.wanted)


class Autoscaler:
    """A pure function of the reported loads. More replicas are wanted at once, fewer after the model's delay.

    A time without decisions is no part of that delay: the controller stood still, and has yet to read its reports.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._scaled: dict[Place, _Scaled] = {}
        self._models: dict[str, Place] = {}
        self._loads: dict[str, tuple[float, Mapping[str, tuple[float, float]]]] = {}
        self._decided_s = now_s()

    @property
    def idle(self) -> bool:
        """Whether no deployment is autoscaled."""
        return not self._scaled

    def follow(
        self, deployments: Iterable[DeploymentPlan], running: Mapping[Place, int], tried: Collection[Place] = ()
    ) -> None:
        """Scale these from now on, those that are `tried` to one replica at least.

        `running` are the numbers that Serve goes by, where it knows the deployment.
        """
        before, self._scaled, self._models = self._scaled, {}, {}
        for deployment in deployments:
            if deployment.autoscaling is None:
                continue
            key = deployment.place
            known = before.get(key)
            rules = deployment.autoscaling
            if key in tried and not rules.min_replicas:
                rules = replace(rules, min_replicas=1)
            count = known.count if known is not None else running.get(key, deployment.replica_count)
            count = max(rules.min_replicas, min(rules.max_replicas, count))
            self._scaled[key] = scaled = _Scaled(rules, count)
            # Nothing is known of the load yet: what runs was wanted until now.
            scaled.wanted.append((self._now_s(), count))
            if known is not None and known.rules == scaled.rules:
                scaled.wanted = known.wanted
            for model in deployment.models:
                self._models[f"{model.name}/{model.version}"] = key

    def count(self, key: Place) -> int | None:
        """Return how many replicas a deployment shall have; None when it is not autoscaled."""
        scaled = self._scaled.get(key)
        return None if scaled is None else scaled.count

    def is_busy(self, key: Place) -> bool:
        """Whether requests for a deployment were under way when it was last decided."""
        scaled = self._scaled.get(key)
        return scaled is not None and scaled.ongoing > 0

    def take(self, ingress: str, loads: Mapping[str, tuple[float, float]]) -> None:
        """Take from an ingress, by `<model>/<version>`, the requests under way and how many began in a second."""
        self._loads[ingress] = (self._now_s(), loads)

    @property
    def unasked(self) -> set[Place]:
        """Deployments that have replicas, nothing under way, and no replica when that lasts."""
        return {
            key
            for key, scaled in self._scaled.items()
            if scaled.count and not scaled.ongoing and not scaled.rules.min_replicas
        }

    def decide(self, starting: Collection[Place] = ()) -> dict[Place, int]:
        """Return the deployments that shall have another number of replicas from now on.

        Those whose first replica is `starting` keep one: their delay begins when it serves.
        """
        now_s = self._now_s()
        still_s, self._decided_s = now_s - self._decided_s, now_s
        if still_s > _FORGOTTEN_S:
            for scaled in self._scaled.values():
                scaled.stood_still(still_s, now_s)
        self._loads = {name: row for name, row in self._loads.items() if row[0] > now_s - _FORGOTTEN_S}
        totals = {key: (0.0, 0.0) for key in self._scaled}
        for _, loads in self._loads.values():
            for model, (ongoing, sent_per_s) in loads.items():
                if (key := self._models.get(model)) is not None:
                    before = totals[key]
                    totals[key] = (before[0] + ongoing, before[1] + sent_per_s)
        return {
            key: scaled.count
            for key, scaled in self._scaled.items()
            if scaled.decide(*totals[key], now_s, least=1 if key in starting else 0)
        }
