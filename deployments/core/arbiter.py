"""Decides which instances run, by the resources that they need.

Source: core's `rate_limiter.cc` and Triton's page on it. Unlike there, an instance that waits for a resource holds up
those behind it that need the same resource, and no others.
"""

from collections import Counter

from deployments.core.rate_limit import ALL_DEVICES, Given, Needs

Place = tuple[str, int]
"""A resource's name and device."""


class Arbiter:
    """The instances of a node, what they hold and what they wait for."""

    def __init__(self, given: Given = ()) -> None:
        self._given = given
        self._needs: dict[str, Needs] = {}
        self._turns: Counter[str] = Counter()
        self._last_rank = 0
        self._waiting: dict[str, None] = {}
        self._held: set[str] = set()

    def check(self, needs: Needs) -> str:
        """Return why an instance can never run, "" when it can; the texts are Triton's."""
        devices: dict[str, set[bool]] = {}
        for each in (*self._needs.values(), needs):
            for resource in each.resources:
                devices.setdefault(resource.name, set()).add(resource.device == ALL_DEVICES)
        for (name, device), count in _places(needs).items():
            if len(devices[name]) > 1:
                return (
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
            limit = self._given_count(name, device) if self._given else count
            if limit < count:
                return (
                    f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one '
                    f"or more model instances, the minimum required count is {count}"
                )
        return ""

    def add(self, key: str, needs: Needs, *, holds: bool = False) -> None:
        """Take an instance in; `holds` says that it runs already.

        It counts as having had the turns of who ran last, which otherwise would wait until it has caught up.
        """
        self._turns[key] = self._last_rank // needs.priority
        self._needs[key] = needs
        if holds:
            self._held.add(key)

    def remove(self, key: str) -> None:
        """Forget an instance and free what it holds."""
        self._needs.pop(key, None)
        self._turns.pop(key, None)
        self._waiting.pop(key, None)
        self._held.discard(key)

    def want(self, key: str) -> None:
        """Have an instance wait for its turn."""
        if key in self._needs and key not in self._held:
            self._waiting.setdefault(key)

    def done(self, key: str) -> None:
        """Free what an instance holds, or have it wait no more."""
        self._held.discard(key)
        self._waiting.pop(key, None)

    def grants(self) -> list[str]:
        """Return the instances that run from now on: of those that wait, those with the fewest turns by priority first.

        With as many turns the one of the higher priority is first. What an instance has to wait for is not given to
        those after it.
        """
        limits = self._limits()
        used = Counter[Place]()
        for key in self._held:
            used.update(_places(self._needs[key]))
        granted = []
        for key in sorted(self._waiting, key=lambda each: (self._rank(each), self._needs[each].priority)):
            places = _places(self._needs[key])
            if all(used[place] + count <= limits[place] for place, count in places.items()):
                used.update(places)
                granted.append(key)
            else:
                used.update(dict.fromkeys(places, max(limits.values())))
        for key in granted:
            del self._waiting[key]
            self._held.add(key)
            self._last_rank = self._rank(key)
            self._turns[key] += 1
        return granted

    def _rank(self, key: str) -> int:
        """Return the turns that an instance has had after its next one, by its priority."""
        return (self._turns[key] + 1) * self._needs[key].priority

    def _limits(self) -> dict[Place, int]:
        limits: dict[Place, int] = {}
        for needs in self._needs.values():
            for place, count in _places(needs).items():
                limits[place] = self._given_count(*place) if self._given else max(limits.get(place, 0), count)
        return limits

    def _given_count(self, name: str, device: int) -> int:
        counts = {at: count for given, at, count in self._given if given == name}
        if device == ALL_DEVICES:
            return max(counts.values(), default=0)
        return counts.get(device, counts.get(None, 0))


def _places(needs: Needs) -> Counter[Place]:
    places = Counter[Place]()
    for resource in needs.resources:
        places[resource.name, resource.device] += resource.count
    return places
