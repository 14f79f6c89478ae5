"""What a replica tells the process of a model that reads slowly, or not at all."""

import gc
import os
import socket
import threading

import numpy as np
import pytest

from deployments.backends.python.process.area import OwnArea, PeerArea
from deployments.backends.python.process.channel import Channel, Writer
from deployments.backends.python.process.outbox import Outbox
from deployments.backends.python.process.served_calls import ServedCalls


@pytest.fixture
def ends():
    areas = [os.memfd_create(name) for name in ("to", "from")]
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    there.settimeout(10)
    yield Channel(here, OwnArea(areas[0]), PeerArea(areas[1])), Channel(there, OwnArea(areas[1]), PeerArea(areas[0]))
    here.close()
    there.close()
    for area in areas:
        os.close(area)


def test_messages_arrive_in_order_though_the_socket_is_full_for_a_while(ends):
    here, there = ends
    outbox = Outbox(here, lambda: pytest.fail("nothing is lost"))
    for number in range(2000):
        outbox.send("news", None, number, "x" * 1000)
    for number in range(2000):
        kind, _, (told, _) = there.read(there.connection.recv(65536))
        assert (kind, told) == ("news", number)


def test_a_process_that_reads_nothing_is_given_up(ends):
    here, _ = ends
    overruns = []
    outbox = Outbox(here, lambda: overruns.append(1), max_waiting=50)
    while not overruns:
        outbox.send("news", None, "x" * 1000)
    outbox.close()


def test_what_comes_after_the_end_of_a_process_is_written_nowhere(ends):
    here, _ = ends
    outbox = Outbox(here, lambda: pytest.fail("nothing is too much"))
    outbox.close()
    writer = Writer()
    outbox.send("result", writer, writer.describe({"Y": np.zeros(100_000)}))
    assert here._own.size_bytes == 0  # the file is closed by then, and its number may be another's


@pytest.mark.parametrize("by", ["channel", "outbox"])
def test_what_the_garbage_collector_says_while_a_message_is_written_follows_it(ends, by):
    channel, there = ends
    here = channel if by == "channel" else Outbox(channel, lambda: pytest.fail("nothing is lost"))

    class Dropped:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            here.send("dropped", None)

    class Collecting(Writer):
        def store(self, area):
            gc.collect()
            return super().store(area)

    gc.disable()  # until the message is written
    Dropped()
    sending = threading.Thread(target=here.send, args=("first", Collecting()), daemon=True)
    sending.start()
    sending.join(10)
    gc.enable()
    assert [there.read(there.connection.recv(65536))[0] for _ in range(2)] == ["first", "dropped"]


def test_a_model_that_asks_for_what_takes_a_thread_hears_that_there_is_none(ends, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    here, there = ends
    calls = ServedCalls(None, here, Outbox(here, lambda: pytest.fail("nothing is lost")), lambda numbers: [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls.control(7, "is_model_ready", "m", -1)
    told = there.read(there.connection.recv(65536))
    assert told == ("answer", None, (7, None, ("Unavailable", "can't start new thread")))


def test_what_waits_for_room_leaves_with_the_next_message_where_there_was_no_thread_to_wait_on(ends, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    here, there = ends
    outbox = Outbox(here, lambda: pytest.fail("nothing is lost"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for number in range(2000):
            outbox.send("news", None, number, "x" * 1000)
    told = []
    while len(told) < 1000 or told[-1] < 2000:
        if len(told) == 10:
            outbox.send("news", None, 2000, "")
        _, _, (number, _) = there.read(there.connection.recv(65536))
        told.append(number)
    assert told == list(range(2001))
