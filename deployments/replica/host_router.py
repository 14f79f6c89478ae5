"""How ensembles reach their steps, and models those that they call: in this core, else by lane as a KServe v2 body."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from deployments.core.clock import Clock
from deployments.core.core import LATEST, Core
from deployments.core.version_choice import VersionChoice, expected
from deployments.lane.fleet import Fleet
from deployments.lane.target import LaneTarget
from deployments.lane.work_queue import WorkQueue
from deployments.replica.canary_meters import CanaryMeters
from deployments.replica.remote_step import RemoteStep, StepCodec
from deployments.schedulers.scheduler import reply
from protocol.callers import chain, may_be
from protocol.errors import InvalidArgument, ServingError, Unavailable
from protocol.infer import COPIED, SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse, Reply
from protocol.signature import Signature
from repository_loader.traffic import NO_TRAFFIC, Traffic

_MAX_INTERFACES: Final = 4
"""Of one model, that requests are written for: those of ensembles before a change, and of ensembles after it."""
_WAITS_FOR_ITSELF: Final = (
    "Failed for execute the inference request. Model '{}' would wait for an instance of its own that waits for it: {}"
)


class HostRouter:
    """The router of one process; `fleet` is None where nothing is reached outside the process.

    `slow` has a thread for what would keep the loop from its work.
    """

    def __init__(self, core: Core, fleet: Fleet | None, clock: Clock, slow: WorkQueue) -> None:
        self._core = core
        self._fleet = fleet
        self._clock = clock
        self._slow = slow
        self._codecs: dict[str, dict[str, StepCodec]] = {}
        """By model, and by the interface that each writes for; the last is what was told last."""
        self._returning: dict[str, int] = {}
        self._choices: dict[str, VersionChoice] = {}
        self.canaries = CanaryMeters()
        self._taken: Collection[tuple[str, int]] = ()

    def set_signatures(self, signatures: Mapping[str, Signature]) -> None:
        """Take the signatures of models in other processes; a request to them is written by these."""
        for name, signature in signatures.items():
            codecs = self._codecs.setdefault(name, {})
            codecs.pop(signature.interface, None)
            codecs[signature.interface] = StepCodec(signature, self._slow)
            if len(codecs) > _MAX_INTERFACES:
                del codecs[next(iter(codecs))]

    def expect(self, taken: Collection[tuple[str, int]]) -> None:
        """Take which versions of all models take requests: those that name no version go to these."""
        self._taken = taken
        self._core.expect(taken)
        if self._fleet is not None:
            self._fleet.expect(taken)

    def set_traffic(self, traffic: Mapping[str, Traffic]) -> None:
        """Take how the versions of each model share the requests that name none.

        A model that has no weights any more keeps its choice, which knows where its sequences are.
        """
        for name, each in {**dict.fromkeys(self._choices, NO_TRAFFIC), **traffic}.items():
            known = self._choices.get(name)
            if known is not None:
                known.traffic = each
            elif each:
                self._choices[name] = VersionChoice(each)

    def _version(self, model_name: str, request: InferRequest) -> int | None:
        """Return the version for a request that names none, `LATEST` where the highest that takes any gets it.

        None: those that have a share are not ready, nor is one of them awaited.
        """
        choice = self._choices.get(model_name)
        if choice is None:
            return LATEST
        ready = self._ready(model_name)
        starts, ends = bool(request.flags & SEQUENCE_START), bool(request.flags & SEQUENCE_END)
        holds = partial(self._holds, model_name)
        chosen = choice.choose(ready, request.sequence_id, starts=starts, ends=ends, holds=holds)
        if chosen is None and self._fleet is not None:
            chosen = max(choice.traffic.shares(self._fleet.awaited_versions(model_name)), default=None)
        return chosen

    def _ready(self, model_name: str) -> Collection[int]:
        found = {*self._core.versions(model_name), *(self._fleet.versions(model_name) if self._fleet else ())}
        return expected(model_name, found, self._taken)

    def reaches_share(self, model_name: str) -> bool:
        """Whether a version of a model can be asked that gets requests which name none, as far as weights say which."""
        choice = self._choices.get(model_name)
        return choice is None or bool(choice.traffic.shares(self._ready(model_name)))

    def _others(self, model_name: str, version: int, request: InferRequest) -> Sequence[LaneTarget]:
        """Return the other versions elsewhere that may hold a request's sequence; what starts anew ends in all."""
        versions = [each for each in self._ready(model_name) if each != version]
        targets = [self._target(model_name, each) for each in versions]
        others = [each for each in targets if each is not None]
        if request.flags & COPIED or not request.flags & SEQUENCE_START:
            return others
        for other in others:
            other.end_sequence(request.sequence_id)
        for each in versions:
            self._core.end_sequence(model_name, each, request.sequence_id)
        return ()

    def _holds(self, model_name: str, version: int, sequence_id: int | str) -> bool:
        target = self._fleet.target(model_name, version) if self._fleet else None
        return self._core.holds(model_name, version, sequence_id) or (target is not None and target.holds(sequence_id))

    def fits(self, model_name: str, version: int, interface: str) -> bool:
        """Whether a version has an interface, as far as it serves anywhere; what it has had before does not count."""
        target = self._fleet.target(model_name, version) if self._fleet else None
        found = self._core.interfaces(model_name, version)
        found |= target.choice.interfaces if target is not None else set()
        return not interface or not found or interface in found

    def infer(self, model_name: str, version: int, request: InferRequest, interface: str = "") -> None:
        """Send the request; every outcome comes through `request.reply`, never before this returns."""
        others: Sequence[LaneTarget] = ()
        if version == LATEST and self._choices:
            chosen = self._version(model_name, request)
            if chosen is None:
                self._refuse(request, _not_ready(model_name))
                return
            version = chosen
            self.canaries.measure(model_name, version, request)
            if request.sequence_id and model_name in self._choices:
                others = self._others(model_name, version, request)
        here = self._core.has(model_name)
        if request.callers and not self._may_return(model_name, version, request, here):
            callers = chain(request.callers, model_name)
            self._refuse(request, InvalidArgument(_WAITS_FOR_ITSELF.format(model_name, callers)))
            return
        target = None
        if here and not self._core.serves(model_name, version, interface):
            target = self._target(model_name, version, interface)  # where it is to be, or has been until now
        if here and target is None:
            self._core.infer(model_name, version, request, interface)
            return
        target = target or self._target(model_name, version, interface)
        codec = (
            None if target is None else self._codec(model_name, {interface} if interface else target.choice.interfaces)
        )
        if target is None or codec is None:
            self._refuse(request, _not_ready(model_name))
            return
        step = request.context = RemoteStep(request, codec, target, self._clock, others, interface)
        step.begin()

    def _codec(self, name: str, interfaces: Collection[str]) -> StepCodec | None:
        """Return a codec for one of the interfaces, else the one that was told last."""
        codecs = self._codecs.get(name, {})
        latest = next(reversed(codecs.values()), None)
        return next((codecs[interface] for interface in interfaces if interface in codecs), latest)

    def _target(self, name: str, version: int, interface: str = "") -> LaneTarget | None:
        fleet = self._fleet
        return (fleet.target(name, version, interface) or fleet.awaited(name, version)) if fleet else None

    def awaits(self, name: str, version: int) -> bool:
        """Whether requests for a model version wait, in other processes, for a replica in place of one that died."""
        target = None if self._core.has(name) else self._target(name, version)
        return target is not None and target.awaits_replacement

    def _may_return(self, name: str, version: int, request: InferRequest, here: bool) -> bool:
        """Whether a model may be asked by what waits for it: if one of its instances is sure to become free.

        Each request on its way back to the model may have an instance wait for it. What other processes wait for is
        not known here. Another version of the model has instances of its own.
        """
        if not any(may_be(each, name, version) for each in request.callers):
            return True
        instances = self._core.instance_count(name) if here else 0
        if self._returning.get(name, 0) + 1 >= instances:
            return False
        self._returning[name] = self._returning.get(name, 0) + 1
        request.reply = partial(self._returned, name, request.reply)
        return True

    def _returned(self, name: str, tell: Reply, request: InferRequest, result: InferResponse | ServingError) -> None:
        if not isinstance(result, InferResponse) or result.final:
            self._returning[name] -= 1
            request.reply = tell
        tell(request, result)

    def cancel(self, request: InferRequest, *, listens: bool = False) -> None:
        """Give a request up; its reply still comes, from another process at once unless the sender `listens`."""
        step = request.context
        if isinstance(step, RemoteStep):
            step.cancel(listens=listens)
        else:
            self._core.cancel(request)

    def _refuse(self, request: InferRequest, error: ServingError) -> None:
        self._clock.call_soon(partial(reply, request, error))


def _not_ready(name: str) -> ServingError:
    return Unavailable(f"Request for unknown model: '{name}' is not at ready state")
