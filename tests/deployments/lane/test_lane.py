import asyncio
import socket
from typing import Any

import orjson
import pytest

from deployments.lane import routes
from deployments.lane.frames import HEADER, MAX_FRAME_BYTES, FrameProtocol, Kind
from deployments.lane.server import MAX_MODELS, LaneServer
from protocol.errors import InvalidArgument, Unavailable
from tests.deployments.lane.harness import Lanes, Sink, on_loop


@on_loop
async def test_a_request_goes_and_its_answer_comes_back() -> None:
    async with Lanes() as lanes:
        sink = await lanes.ask(b"{}data", json_length=2)
        assert sink.responses == [b"{}data"]
        assert sink.json_length == 2
        assert (await lanes.ask(b"{}")).json_length is None


@pytest.mark.parametrize("size", [0, 1, 65_519, 65_520, 65_521, 300_000, 5_000_000])
@on_loop
async def test_bodies_of_every_size_arrive_whole(size: int) -> None:
    async with Lanes() as lanes:
        body = bytes(range(256)) * (size // 256 + 1)
        sinks = [lanes.send(body[:size])[0] for _ in range(3)]
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [body[:size]]


@on_loop
async def test_many_requests_are_in_flight_on_one_lane() -> None:
    async with Lanes() as lanes:
        lanes.replicas[0].model.hold = True
        sinks = [lanes.send(b"%d" % number)[0] for number in range(50)]
        await lanes.until(lambda: len(lanes.replicas[0].model.held) == 50)
        lanes.replicas[0].model.release()
        for number, sink in enumerate(sinks):
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [b"%d" % number]


@on_loop
async def test_an_error_keeps_its_kind_and_text() -> None:
    async with Lanes() as lanes:
        sink = await lanes.ask(b"bad")
        assert type(sink.error) is InvalidArgument
        assert sink.error.message == "a bad request"


@on_loop
async def test_an_error_says_whether_the_model_has_taken_the_request() -> None:
    async with Lanes() as lanes:
        refused = await lanes.ask(b"bad")
        model = lanes.replicas[0].model
        model.submit_request = lambda request: request.reply(request, InvalidArgument("the model's"))
        failed = await lanes.ask(b"x")
        assert refused.error is not None
        assert failed.error is not None
        assert (refused.error.refused, failed.error.refused) == (True, False)


@on_loop
async def test_what_was_on_its_way_to_a_model_that_has_been_unloaded_goes_to_another_replica() -> None:
    """As when the model is in another place from now on, of which the sender has not heard yet."""
    async with Lanes(2) as lanes:
        for replica in lanes.replicas:
            replica.server.set_model("echo", 1, None)
            asked = [asyncio.create_task(lanes.ask(b"%d" % number)) for number in range(10)]
            await asyncio.sleep(0)
            if replica is lanes.replicas[0]:
                assert [(await each).responses for each in asked] == [[b"%d" % number] for number in range(10)]
            else:
                errors = [(await each).error for each in asked]
                assert {str(error) for error in errors} == {"the model has been unloaded"}


@on_loop
async def test_several_responses_come_before_the_final_one() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        model.hold = True
        sink, _ = lanes.send(b"x")
        await lanes.until(lambda: bool(model.held))
        model.stream(3)
        await asyncio.wait_for(sink.done.wait(), 5)
        assert sink.responses == [b"x"] * 3


@on_loop
async def test_the_replica_with_fewer_requests_gets_the_next() -> None:
    async with Lanes(2) as lanes:
        for replica in lanes.replicas:
            replica.model.hold = True
        for _ in range(10):
            lanes.send()
        await lanes.until(lambda: all(len(replica.model.held) == 5 for replica in lanes.replicas))


@on_loop
async def test_requests_in_a_replica_that_dies_go_to_another() -> None:
    async with Lanes(2) as lanes:
        for replica in lanes.replicas:
            replica.model.hold = True
        sinks = [lanes.send(b"%d" % number)[0] for number in range(20)]
        await lanes.until(lambda: all(len(replica.model.held) == 10 for replica in lanes.replicas))
        first, second = lanes.replicas
        first.die()
        second.model.hold = False
        await lanes.until(lambda: len(second.model.held) == 20 or lanes.lanes_open == 1)
        second.model.release()
        for number, sink in enumerate(sinks):
            await asyncio.wait_for(sink.done.wait(), 5)
            assert (sink.error, sink.responses) == (None, [b"%d" % number])


@on_loop
async def test_requests_wait_for_the_replica_in_place_of_the_only_one_that_died() -> None:
    async with Lanes(2) as lanes:
        waiting = await two_of_a_dead_replica(lanes)
        lanes.publish(lanes.replicas[1])
        for body, sink in waiting.items():
            await asyncio.wait_for(sink.done.wait(), 5)
            assert (sink.error, sink.responses) == (None, [body])
        assert lanes.fleet.target("echo") is not None
        assert lanes.fleet.awaited("echo") is None


async def two_of_a_dead_replica(lanes: Lanes) -> dict[bytes, Sink]:
    """Return what waits after the death of the only replica: what was in it, and what has come since."""
    first = lanes.replicas[0]
    lanes.publish(first)
    await lanes.until(lambda: lanes.lanes_open == 1)
    first.model.hold = True
    inside, _ = lanes.send(b"inside")
    await lanes.until(lambda: bool(first.model.held))
    first.die()
    await lanes.until(lambda: lanes.fleet.target("echo") is None)
    target = lanes.fleet.awaited("echo", 1)
    assert target is lanes.fleet.awaited("echo")
    assert target is not None
    assert not target.ready
    later = Sink()
    target.submit((b"later",), None, later)
    await asyncio.sleep(0.05)
    assert not inside.done.is_set()
    assert not later.done.is_set()
    return {b"inside": inside, b"later": later}


def assert_refused(sink: Sink) -> None:
    assert type(sink.error) is Unavailable
    assert sink.error.message == "Request for unknown model: 'echo' version 1 is not at ready state"


@on_loop
async def test_requests_wait_for_a_replica_that_is_not_replaced_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "REPLACEMENT_S", 0.2)
    async with Lanes() as lanes:
        waiting = await two_of_a_dead_replica(lanes)
        for sink in waiting.values():
            await asyncio.wait_for(sink.done.wait(), 5)
            assert_refused(sink)
        assert lanes.fleet.awaited("echo") is None


@on_loop
async def test_nothing_waits_for_a_replica_of_what_was_unloaded() -> None:
    async with Lanes() as lanes:
        waiting = await two_of_a_dead_replica(lanes)
        lanes.fleet.expect({("echo", 1)})
        assert not any(sink.done.is_set() for sink in waiting.values())
        lanes.fleet.expect({("echo", 2)})
        assert_refused(waiting[b"later"])
        assert_refused(waiting[b"inside"])
        assert lanes.fleet.awaited("echo", 1) is None


@on_loop
async def test_what_names_no_version_goes_to_the_highest_that_takes_requests() -> None:
    async with Lanes() as lanes:
        replica = lanes.replicas[0]
        for version in (2, 3):
            replica.server.set_model("echo", version, replica.model)
        await lanes.until(lambda: lanes.fleet.target("echo", 3) is not None)

        def version() -> int | None:
            target = lanes.fleet.target("echo")
            return None if target is None else target.version

        assert version() == 3
        lanes.fleet.expect({("echo", 1), ("echo", 2)})
        assert version() == 2
        replica.server.set_model("echo", 2, None)
        await lanes.until(lambda: version() == 1)
        lanes.fleet.expect({("echo", 2)})
        assert version() == 3
        replica.server.set_model("echo", 1, None, "its process has died")
        await lanes.until(lambda: lanes.fleet.awaited("echo") is not None)
        lanes.fleet.expect({("echo", 1)})
        assert version() is None


@on_loop
async def test_what_waits_for_a_replica_can_be_cancelled() -> None:
    async with Lanes(2) as lanes:
        await two_of_a_dead_replica(lanes)
        target = lanes.fleet.awaited("echo")
        assert target is not None
        sink = Sink()
        target.cancel(target.submit((b"given up",), None, sink))
        lanes.publish(lanes.replicas[1])
        await lanes.until(lambda: lanes.lanes_open == 1)
        assert (await lanes.ask()).error is None
        assert not sink.done.is_set()


@pytest.mark.parametrize(
    ("drains", "said"),
    [(False, "that held the request died"), (True, "ended before it had answered the request")],
    ids=["died", "ended"],
)
@on_loop
async def test_a_request_is_not_sent_again_once_a_response_was_delivered(drains: bool, said: str) -> None:
    async with Lanes(2) as lanes:
        for replica in lanes.replicas:
            replica.model.hold = True
        sink, _ = lanes.send()
        await lanes.until(lambda: any(replica.model.held for replica in lanes.replicas))
        (busy,) = [replica for replica in lanes.replicas if replica.model.held]
        request = busy.model.held[0]
        from protocol.infer import InferResponse

        request.reply(request, InferResponse({}, final=False))
        await lanes.until(lambda: bool(sink.responses))
        if drains:
            await busy.server.drain(0.1)
        else:
            busy.die()
        await asyncio.wait_for(sink.done.wait(), 5)
        assert type(sink.error) is Unavailable and str(sink.error) == f"the replica of model 'echo' {said}"


@on_loop
async def test_a_cancelled_request_is_cancelled_in_the_replica() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        model.hold = True
        sink, token = lanes.send()
        await lanes.until(lambda: bool(model.held))
        target = lanes.fleet.target("echo")
        assert target is not None
        target.cancel(token)
        await lanes.until(lambda: bool(model.cancelled))
        model.hold = False
        model.release()
        assert (await lanes.ask()).responses == [b"hello"]
        assert not sink.done.is_set()


@on_loop
async def test_a_client_that_goes_cancels_what_it_had_under_way() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        model.hold = True
        lanes.send()
        lanes.send()
        await lanes.until(lambda: len(model.held) == 2)
        await lanes.fleet.close()
        await lanes.until(lambda: len(model.cancelled) == 2)


@on_loop
async def test_a_replica_that_left_the_list_gets_nothing_new_and_finishes_what_it_has() -> None:
    async with Lanes(2) as lanes:
        first, second = lanes.replicas
        first.model.hold = second.model.hold = True
        sinks = [lanes.send()[0] for _ in range(4)]
        await lanes.until(lambda: len(first.model.held) == len(second.model.held) == 2)
        lanes.publish(second)
        await lanes.until(lambda: lanes.lanes_open == 1)
        lanes.send()
        await lanes.until(lambda: len(second.model.held) == 3)
        first.model.release()
        second.model.release()
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.error is None


@on_loop
async def test_a_draining_replica_answers_what_it_has_and_gets_nothing_new() -> None:
    async with Lanes(2) as lanes:
        first, second = lanes.replicas
        first.model.hold = second.model.hold = True
        sinks = [lanes.send()[0] for _ in range(2)]
        await lanes.until(lambda: len(first.model.held) == len(second.model.held) == 1)
        draining = asyncio.create_task(first.server.drain(5))
        await lanes.until(lambda: lanes.lanes_open == 1)
        lanes.send()
        await lanes.until(lambda: len(second.model.held) == 2)
        first.model.release()
        second.model.release()
        await draining
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.error is None


@on_loop
async def test_a_lane_that_breaks_is_opened_again() -> None:
    async with Lanes() as lanes:
        for connection in tuple(lanes.replicas[0].server.connections):
            connection.abort()
        await lanes.until(lambda: lanes.lanes_open == 0)
        await lanes.until(lambda: lanes.lanes_open == 1)
        assert (await lanes.ask()).error is None


@on_loop
async def test_a_model_withdrawn_or_added_is_known_at_once() -> None:
    async with Lanes() as lanes:
        server = lanes.replicas[0].server
        server.set_model("echo", 2, lanes.replicas[0].model)
        await lanes.until(lambda: lanes.fleet.target("echo", 2) is not None)
        assert lanes.fleet.target("echo").version == 2  # type: ignore[union-attr]
        server.set_model("echo", 2, None)
        await lanes.until(lambda: lanes.fleet.target("echo", 2) is None)
        assert lanes.fleet.target("echo").version == 1  # type: ignore[union-attr]


@on_loop
async def test_many_models_that_go_at_once_are_one_piece_of_news() -> None:
    """Else the ingress, and what is under way, would wait for as many tables of as many rows."""
    async with Lanes() as lanes:
        server, model = lanes.replicas[0].server, lanes.replicas[0].model
        names = [f"model_{number}" for number in range(100)]
        for name in names:
            server.set_model(name, 1, model)
        await lanes.until(lambda: lanes.fleet.target(names[-1]) is not None)
        before = lanes.news_count
        for name in names:
            server.set_model(name, 1, None)
        await lanes.until(lambda: all(lanes.fleet.target(name) is None for name in names))
        assert lanes.news_count == before + 1


@on_loop
async def test_a_replica_whose_models_come_and_go_for_ever_names_each_in_its_frames() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        server = LaneServer("secret", asyncio.get_running_loop())
        server.set_model("stays", 1, model)
        server.set_model("broken", 1, None, "its process has died")
        indices = set()
        for build in range(MAX_MODELS + 10):
            server.set_model(f"model_{build}", 1, model)
            indices.add(orjson.loads(server.table())[-1][0])
            server.set_model(f"model_{build}", 1, None)
        assert indices == set(range(2, MAX_MODELS)), "each waits its turn, and those in use are left alone"
        assert [row[:4] for row in orjson.loads(server.table())] == [
            [0, "stays", 1, ""],
            [1, "broken", 1, "its process has died"],
        ]
        assert server.models == {0: model}


BAD = {
    "wrong secret": HEADER.pack(22, 0, Kind.HELLO, 0, 0, 0) + b"wrong!",
    "no hello": HEADER.pack(18, 1, Kind.REQUEST, 0, 0, 0) + b"{}",
    "short frame": HEADER.pack(3, 0, Kind.HELLO, 0, 0, 0),
    "huge frame": HEADER.pack(MAX_FRAME_BYTES + 1, 0, Kind.HELLO, 0, 0, 0),
    "unknown kind": HEADER.pack(22, 0, Kind.HELLO, 0, 0, 0) + b"secret" + HEADER.pack(16, 0, 99, 0, 0, 0),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
@on_loop
async def test_a_peer_that_is_not_a_lane_is_cut_off(data: bytes) -> None:
    async with Lanes() as lanes:
        reader, writer = await asyncio.open_unix_connection(lanes.replicas[0].address.unix_path)
        writer.write(data)
        async with asyncio.timeout(5):
            try:
                answer = await reader.read()
            except ConnectionResetError:
                answer = b""
        writer.close()
        assert b"{}" not in answer
        assert (await lanes.ask()).error is None


@on_loop
async def test_an_index_that_no_model_has_is_an_error_of_that_request_only() -> None:
    async with Lanes() as lanes:
        target: Any = lanes.fleet.target("echo")
        (lane,) = target.choice.lanes
        target.choice.lanes[lane] = 7
        assert type((await lanes.ask()).error) is Unavailable
        target.choice.lanes[lane] = 0
        assert (await lanes.ask()).error is None


class Collector(FrameProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.frames: list[tuple[int, bytes]] = []

    def frame_received(self, kind: int, flags: int, number: int, call: int, json_length: int, body: Any) -> None:
        self.frames.append((call, bytes(body)))


@pytest.mark.parametrize("step", [1, 7, 16, 17, 1000, 65_536])
@on_loop
async def test_frames_are_cut_right_wherever_reads_end(step: int) -> None:
    bodies = [b"", b"a", b"b" * 15, b"c" * 70_000, b"d" * 3]
    data = b"".join(HEADER.pack(16 + len(body), call, Kind.REQUEST, 0, 0, 0) + body for call, body in enumerate(bodies))
    collector = Collector(asyncio.get_running_loop())
    for start in range(0, len(data), step):
        collector.data_received(data[start : start + step])
    assert collector.frames == list(enumerate(bodies))


@on_loop
async def test_what_is_sent_in_one_turn_leaves_in_one_write() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_unix_connection(lambda: Collector(loop), sock=ours)
        writes: list[bytes] = []
        transport.write = writes.append  # type: ignore[method-assign]
        for call in range(5):
            protocol.send(Kind.REQUEST, call, (b"x",), size=1)
        await asyncio.sleep(0)
        assert len(writes) == 1
        assert len(writes[0]) == 5 * 17
        transport.close()
    await asyncio.sleep(0)


def test_sinks_are_told_once() -> None:
    sink = asyncio.run(_one_answer())
    assert sink.responses == [b"hello"]


async def _one_answer() -> Sink:
    async with Lanes() as lanes:
        return await lanes.ask()


@on_loop
async def test_requests_spill_to_the_cpu_while_every_gpu_instance_is_busy() -> None:
    async with Lanes(2) as lanes:
        gpu, cpu = lanes.replicas
        cpu.server.spill = True
        cpu.server.set_model("echo", 1, cpu.model)
        await lanes.until(lambda: lanes.fleet.target("echo").choice._spill is not None)  # type: ignore[union-attr]
        gpu.model.hold = True
        waiting = [lanes.send()[0] for _ in range(gpu.model.capacity)]
        await lanes.until(lambda: len(gpu.model.held) == gpu.model.capacity)
        assert (await lanes.ask()).responses == [b"hello"]  # by the CPU: the GPU holds everything
        assert not any(sink.done.is_set() for sink in waiting)
        gpu.model.hold = False
        gpu.model.release()
        await lanes.until(lambda: all(sink.done.is_set() for sink in waiting))
        cpu.model.hold = True
        assert (await lanes.ask()).responses == [b"hello"]  # by the GPU again


@on_loop
async def test_a_target_knows_whether_its_replica_has_other_models_too() -> None:
    async with Lanes() as lanes:
        target = lanes.fleet.target("echo")
        assert target is not None
        assert not target.shared
        lanes.replicas[0].server.set_model("other", 1, lanes.replicas[0].model)
        await lanes.until(lambda: target.shared)
