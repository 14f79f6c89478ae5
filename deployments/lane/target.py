"""One model version that other processes serve: what a request for it is given to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final

from deployments.core.refusals import Refusals
from deployments.core.request_meter import RequestMeter, RequestMeters, give_up
from deployments.lane.choice import LaneChoice
from deployments.lane.client import NO_GPUS, LaneCall, LaneClient
from deployments.lane.frames import NO_JSON_LENGTH, PATIENT, Buffer, Kind
from deployments.lane.lane_share import LaneShare
from deployments.lane.remote_regions import ClientRegions, inline, names_region
from deployments.lane.sequence_lanes import SequenceLanes, SequenceSink, read_mark
from deployments.lane.sink import Sink, VersionTarget
from deployments.lane.waiting_calls import MAX_WAIT_S, WaitingCalls
from deployments.lane.wire import HTTP
from protocol.errors import ServingError, Unavailable
from protocol.sequence_mark import SequenceMark
from protocol.trace import Trace

_MAX_REPLICAS_ASKED: Final = 3


@dataclass(frozen=True, slots=True)
class TargetContext:
    """What every target of a process goes by.

    `max_inflight` bounds the requests under way on one lane, of which a model has its share where there are others;
    `refusals` counts those that went nowhere; `regions` is None where no client registers any, `meters` where requests
    are none of clients.
    """

    max_inflight: int
    refusals: Refusals
    regions: ClientRegions | None = None
    meters: RequestMeters | None = None


class LaneTarget:
    """Sends requests for one model version over the lanes that lead to it.

    Of a model that batches sequences all requests of one go to the same replica; others pay nothing for that.
    """

    def __init__(self, model_name: str, version: int, context: TargetContext) -> None:
        self.model_name = model_name
        self.version = version
        self.choice = LaneChoice()
        self.sent = 0
        self.waiting: WaitingCalls | None = None
        self.awaits_replacement = False
        self._context = context
        self._share = LaneShare(context.max_inflight)
        self._sequences: SequenceLanes | None = None
        self._meter = None if context.meters is None else context.meters.of(model_name, version)

    @property
    def shared(self) -> bool:
        """Whether a replica of the model has others too, or this process may have to look into its requests.

        It looks for the sequence that one belongs to, and copies what is in regions.
        """
        others = any(lane.model_count > 1 for lane in self.choice.lanes)
        return others or self._sequences is not None or self._may_copy()

    def _may_copy(self) -> bool:
        regions = self._context.regions
        if regions is None or not regions.registered:
            return False
        return regions.on_devices or len(self.choice.near()) < max(1, len(self.choice.lanes))

    @property
    def ready(self) -> bool:
        """Whether a live lane leads to the model, or the model sleeps and requests wake it."""
        return bool(self.choice.lanes) or (self.waiting is not None and not self.awaits_replacement)

    @property
    def may_get_replica(self) -> bool:
        """Whether requests wait while there is no lane."""
        return self.waiting is not None

    @property
    def ongoing(self) -> int:
        """Requests under way on the lanes that lead to the model, and those that wait for one."""
        return sum(len(lane.calls) for lane in self.choice.lanes) + (len(self.waiting) if self.waiting else 0)

    def may_wait(self, wake: Callable[[], None], max_wait_s: float = MAX_WAIT_S) -> None:
        """Have requests wait while there is no lane; `wake` is called when one does."""
        self.awaits_replacement = False
        if self.waiting is None:
            self.waiting = WaitingCalls(wake, self.refuse)
        self.waiting.wake, self.waiting.max_wait_s = wake, max_wait_s

    def must_not_wait(self) -> None:
        """Refuse requests while there is no lane, also those that wait."""
        waiting, self.waiting = self.waiting, None
        self.awaits_replacement = False
        self._send_all(waiting)

    def await_replacement(self) -> None:
        """Have requests wait for the next lane; the last replica has died, and Serve makes another one."""
        self.may_wait(_serve_knows)
        self.awaits_replacement = True

    def lane_added(self) -> None:
        """Send what waits."""
        if self.awaits_replacement:
            self.must_not_wait()
        elif self.waiting:
            self._send_all(self.waiting)

    def serves(self, interface: str) -> bool:
        """Whether all the lanes lead to an interface of the model, "" for any; where there is none, it may come."""
        return not interface or not self.choice.lanes or self.choice.interfaces == {interface}

    def _send_all(self, waiting: WaitingCalls | None) -> None:
        for call in waiting.release() if waiting is not None else ():
            if not call.cancelled and (error := self._send_waiting(call)) is not None:
                self.refuse(call, error)

    def submit(
        self,
        parts: Sequence[Buffer],
        json_length: int | None,
        sink: Sink,
        wire: int = HTTP,
        trace: Trace | None = None,
        *,
        from_client: bool = True,
        copied: bool = False,
    ) -> LaneCall | None:
        """Send a request; its bytes are kept until it is answered. Those of clients are counted as such."""
        near, gpus = False, NO_GPUS
        regions = self._context.regions
        if regions is not None and regions.registered and names_region(parts, json_length, wire):
            near = bool(self.choice.near())
            if not near or regions.on_devices:
                reached = NO_GPUS.union(*self.choice.gpus.values())
                try:
                    inlined = inline(parts, json_length, wire, regions, sink, far=not near, gpus=reached)
                except ServingError as refused:
                    self._fail_unsent(sink, wire, refused, from_client)
                    return None
                parts, json_length, sink, gpus = inlined
        size = 0
        for part in parts:
            size += len(part)
        call = LaneCall(self, parts, json_length, sink, size, wire)
        call.near, call.gpus = near, gpus
        call.trace, call.copied = trace, copied
        meter = self._meter
        if meter is not None and from_client:
            meter.begun[wire] += 1
            call.cells = meter.cells[wire] or meter.open(wire)
            call.began_ns = monotonic_ns()
        self.sent += 1
        error = self.send(call)
        if error is not None:
            self.refuse(call, error)
        return call

    def follow_sequences(self, idle_us: int) -> None:
        """Keep the requests of a sequence together from now on; 0: the model has no sequences."""
        if not idle_us:
            self.__dict__.pop("submit", None)
            self._sequences = None
        elif self._sequences is None or self._sequences.idle_s != idle_us / 1e6:
            self._sequences = SequenceLanes(idle_us / 1e6)
            self.submit = self._submit_sequence  # type: ignore[method-assign]

    def holds(self, sequence_id: int | str) -> bool:
        """Whether a sequence of this id is known to be under way in a replica."""
        return self._sequences is not None and self._sequences.holds(sequence_id, self.choice.lanes)

    def _submit_sequence(
        self,
        parts: Sequence[Buffer],
        json_length: int | None,
        sink: Sink,
        wire: int = HTTP,
        trace: Trace | None = None,
        *,
        from_client: bool = True,
        copied: bool = False,
    ) -> LaneCall | None:
        mark = read_mark(parts, json_length, wire)
        if mark is None or (self.waiting is not None and not self.choice.lanes):
            return LaneTarget.submit(
                self, parts, json_length, sink, wire, trace, from_client=from_client, copied=copied
            )
        assert self._sequences is not None
        self.sent += 1
        lane = self._sequences.choose(mark, self.choice.lanes)
        if lane is not None:
            sink = SequenceSink(sink, self._sequences, mark, lane)
        regions = self._context.regions
        far = lane is not None and not lane.near
        if (
            regions is not None
            and (regions.registered if far else regions.on_devices)
            and names_region(parts, json_length, wire)
        ):
            try:
                parts, json_length, sink, _ = inline(parts, json_length, wire, regions, sink, far=far)
            except ServingError as refused:
                self._fail_unsent(sink, wire, refused, from_client)
                return None
        call = LaneCall(self, parts, json_length, sink, sum(map(len, parts)), wire)
        call.mark, call.copied = mark, copied
        call.trace = trace
        meter = self._meter
        if meter is not None and from_client:
            call.cells = meter.begin(wire)
            call.began_ns = monotonic_ns()
        error = self._send_in_sequence(call, mark, lane)
        if error is not None:
            self.refuse(call, error)
        return call

    def _send_in_sequence(self, call: LaneCall, mark: SequenceMark, lane: LaneClient | None) -> ServingError | None:
        """Put a call on the lane of its sequence; returns why that is not possible."""
        if lane is None:
            return not_ready(self.model_name, self.version)
        full = len(lane.calls) >= self._share.size and self._share.is_taken(self, lane)
        if full or not lane.has_room(call.size):
            return lane.why_no_room(call.size)
        lane.call(self.choice.lanes[lane], call)
        if self._sequences is not None:
            self._sequences.sent(mark, lane, call.id)
        if mark.starts and not call.copied:
            self._end_elsewhere(mark.sequence_id, lane)
        return None

    def _send_waiting(self, call: LaneCall) -> ServingError | None:
        """Put a call on a lane that has waited for one; that its model has sequences may be known only now."""
        if not self.serves(call.interface):
            return not_ready(self.model_name, self.version)
        if self._sequences is None:
            return self.send(call)
        json_length = None if call.json_length == NO_JSON_LENGTH else call.json_length
        call.mark = read_mark(call.parts, json_length, call.wire)
        if call.mark is None:
            return self.send(call)
        lane = self._sequences.choose(call.mark, self.choice.lanes)
        if lane is not None and not lane.near and (error := self._bring_far(call)) is not None:
            return error
        if lane is not None:
            call.sink = SequenceSink(call.sink, self._sequences, call.mark, lane)
        return self._send_in_sequence(call, call.mark, lane)

    def start_anew(self, call: LaneCall) -> ServingError | None:
        """Put a call on the lane of its sequence, which starts with it or one before it; returns why it cannot be."""
        if self.waiting is not None and not self.choice.lanes:
            return self._bring_far(call) or self.waiting.add(call)
        return self._send_waiting(call)

    def _end_elsewhere(self, sequence_id: int | str, lane: LaneClient) -> None:
        """End what other replicas may hold of a sequence that starts; another ingress may remember that they do."""
        for other, index in self.choice.lanes.items():
            if other is not lane:
                other.end_sequence(index, sequence_id)

    def send(self, call: LaneCall) -> ServingError | None:
        """Put a call on a lane; returns why that is not possible."""
        lane = self.choice.next(near=call.near)
        if lane is None and self.choice.lanes:
            return self._go_far(call) or self.send(call)
        if lane is None and self.waiting is not None:
            return self.waiting.add(call)
        if lane is None:
            return not_ready(self.model_name, self.version)
        if call.gpus and (error := self._bring_near(call, lane)) is not None:
            return error
        full = len(lane.calls) >= self._share.size and self._share.is_taken(self, lane)
        if full or not lane.has_room(call.size):
            return lane.why_no_room(call.size)
        lane.call(self.choice.lanes[lane], call)
        return None

    def send_alone(self, call: LaneCall) -> ServingError | None:
        """Put a call on a lane that shall run with nothing else in its replica; returns why that is not possible."""
        lane = self.choice.next(near=call.near)
        if lane is None and self.choice.lanes:
            return self._go_far(call) or self.send_alone(call)
        if lane is None:
            if self.waiting is not None:
                self.waiting.wake()
            return not_ready(self.model_name, self.version)
        if call.gpus and (error := self._bring_near(call, lane)) is not None:
            return error
        lane.call(self.choice.lanes[lane], call, Kind.LONE_REQUEST, PATIENT if call.deaths > 1 else 0)
        return None

    def _go_far(self, call: LaneCall) -> ServingError | None:
        """Copy in what a call names in regions: only replicas of other nodes are left; returns why it cannot be."""
        error = self._copy_in(call, far=True, gpus=NO_GPUS)
        call.near = error is not None
        return error

    def _bring_far(self, call: LaneCall) -> ServingError | None:
        """Copy in what a call names in regions, if it does; returns why it cannot be."""
        regions = self._context.regions
        return None if regions is None or not regions.registered else self._copy_in(call, far=True, gpus=NO_GPUS)

    def _bring_near(self, call: LaneCall, lane: LaneClient) -> ServingError | None:
        """Copy in what a call names on GPUs that the replica of a lane has not; returns why it cannot be."""
        reached = self.choice.gpus.get(lane, NO_GPUS)
        return None if call.gpus <= reached else self._copy_in(call, far=False, gpus=reached)

    def _copy_in(self, call: LaneCall, *, far: bool, gpus: frozenset[str]) -> ServingError | None:
        assert self._context.regions is not None
        length = None if call.json_length == NO_JSON_LENGTH else call.json_length
        try:
            inlined = inline(call.parts, length, call.wire, self._context.regions, call.sink, far=far, gpus=gpus)
        except ServingError as refused:
            return refused
        call.parts, length, call.sink, call.gpus = inlined
        call.json_length = NO_JSON_LENGTH if length is None else length
        call.size = sum(map(len, call.parts))
        return None

    def send_again(self, call: LaneCall) -> bool:
        """Send a call whose replica has the version no more to one that has it; returns whether there is one.

        A replica says first that it has it no more. What may have killed a replica, and what is within a sequence, is
        sent nowhere else.
        """
        if call.mark is not None or call.deaths or call.lane in self.choice.lanes or not self.serves(call.interface):
            return False
        return self.send(call) is None

    def send_elsewhere(self, call: LaneCall) -> bool:
        """Send a call that found a full queue to the least loaded other replica, unless all were asked by now."""
        lanes = self.choice.near() if call.near else self.choice.lanes
        if call.mark is not None or call.delivered or call.attempts >= min(len(lanes), _MAX_REPLICAS_ASKED):
            return False
        call.refused_by = (*call.refused_by, call.lane)
        share = self._share
        others = [
            lane
            for lane in lanes
            if lane not in call.refused_by
            and lane.has_room(call.size)
            and (len(lane.calls) < share.size or not share.is_taken(self, lane))
        ]
        if not others:
            return False
        lane = min(others, key=lambda other: len(other.calls))
        if call.gpus and self._bring_near(call, lane) is not None:
            return False
        self._context.refusals.count_retry(self.model_name, self.version)
        lane.call(self.choice.lanes[lane], call)
        return True

    def seek_sequence(self, call: LaneCall) -> bool:
        """Send a call that goes on with a sequence to the next replica that may hold it; returns whether there is one.

        Where the sequence began through another ingress, the replicas may have been others then. All requests of it
        are sent the same way, and so stay in their order.
        """
        mark, sequences, refused_by = call.mark, self._sequences, call.lane
        if mark is None or mark.starts or sequences is None or refused_by is None:
            return False
        sequences.left(mark, refused_by)
        call.refused_by = (*call.refused_by, refused_by)
        left = [lane for lane in self.choice.lanes if lane not in call.refused_by]
        lane = sequences.preferred(mark.sequence_id, left)
        if lane is None:
            return self._seek_elsewhere(call)
        if not lane.has_room(call.size):
            return False
        if refused_by.near and not lane.near and self._bring_far(call) is not None:
            return False
        self._context.refusals.count_retry(self.model_name, self.version)
        lane.call(self.choice.lanes[lane], call)
        return True

    def _seek_elsewhere(self, call: LaneCall) -> bool:
        while call.others:
            other, *rest = call.others
            call.others = tuple(rest)
            if isinstance(other, LaneTarget) and other._take_over(call, self._meter):
                return True
        return False

    def _take_over(self, call: LaneCall, meter: RequestMeter | None) -> bool:
        """Send a call of another version, which has counted it so far, to a replica; returns whether it is sent."""
        mark, sequences = call.mark, self._sequences
        lane = None if mark is None or sequences is None else sequences.choose(mark, self.choice.lanes)
        if mark is None or sequences is None or lane is None or not lane.has_room(call.size):
            return False
        if not lane.near and self._bring_far(call) is not None:
            return False
        before = call.target, call.refused_by, call.sink
        call.target, call.refused_by, call.sink = self, (), SequenceSink(call.sink, sequences, mark, lane)
        if self._send_in_sequence(call, mark, lane) is not None:
            call.target, call.refused_by, call.sink = before
            return False
        if call.cells is not None and meter is not None and self._meter is not None:
            meter.begun[call.wire] -= 1
            call.cells = self._meter.begin(call.wire)
        self._context.refusals.count_retry(self.model_name, self.version)
        return True

    def may_be_elsewhere(self, token: LaneCall | None, others: Sequence[VersionTarget]) -> None:
        """Have other versions asked where none of the replicas knows a call's sequence."""
        if token is not None:
            token.others = others

    def end_sequence(self, sequence_id: int | str) -> None:
        """End a sequence that has started anew in another version."""
        for lane, index in self.choice.lanes.items():
            lane.end_sequence(index, sequence_id)

    def refuse(self, call: LaneCall, error: ServingError) -> None:
        """Answer and count a call that no replica answers."""
        error.refused = True
        self._context.refusals.count(self.model_name, self.version, error)
        self.fail(call, error)

    def fail(self, call: LaneCall, error: ServingError) -> None:
        """Answer a call with an error."""
        if self._meter is not None and call.cells is not None:
            self._meter.fail(call.wire, call.cells, error)
        call.sink.on_error(error)

    def _fail_unsent(self, sink: Sink, wire: int, error: ServingError, from_client: bool) -> None:
        error.refused = True
        if self._meter is not None and from_client:
            self._meter.fail(wire, self._meter.begin(wire), error)
        sink.on_error(error)

    def cancel(self, token: LaneCall | None) -> None:
        """Give a request up."""
        if token is None:
            return
        token.cancelled = True
        if token.cells is not None:
            give_up(token.cells)
        if token.lane is not None:
            token.lane.cancel(token)
            holder = token.target  # another version, where that has its sequence
            if token.mark is not None and isinstance(holder, LaneTarget) and holder._sequences is not None:
                holder._sequences.left(token.mark, token.lane)
        if token.given_up is not None:
            token.given_up(token)

    def tell_cancelled(self, token: LaneCall | None) -> bool:
        """Give up a request whose sink still hears what is sent; returns False where that cannot be, as on no lane."""
        return token is not None and token.lane is not None and token.lane.tell_cancelled(token)


def not_ready(name: str, version: int) -> ServingError:
    """Return Triton's error for a version that nothing can be asked of."""
    return Unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state")


def _serve_knows() -> None:
    """Wake nobody: Serve replaces a replica that died without being asked."""
