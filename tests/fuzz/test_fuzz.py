"""The campaign repeats itself for a seed, and sees a server that does not answer, fails or tells too much."""

import random
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from tests.fuzz.classes import CLASSES
from tests.fuzz.mutation import mutate
from tests.hostile.watch import Watch

SEEDS = (b"one", b"another", b"")


def test_same_seed_makes_the_same_bytes() -> None:
    made = [[mutate(random.Random(seed), SEEDS[0], SEEDS) for seed in range(50)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 40


@pytest.mark.parametrize("name", ["HTTP codec", "gRPC codec"])
def test_codecs_stand_a_short_campaign(name: str) -> None:
    wrong = [CLASSES[name](random.Random(seed), cast(Watch, None))[1] for seed in range(300)]
    assert not any(wrong), [each for each in wrong if each]


def _answer(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.fixture
def bad_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Accepts one connection and sends these bytes, whatever comes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            with listener.accept()[0] as client:
                client.sendall(request.param)
                done.wait(10.0)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("bad_server", "wrong"),
    [
        (b"", "no answer within 2 s"),
        (_answer(b"500 Internal Server Error", b"{}"), "answered 500"),
        (_answer(b"400 Bad Request", b'{"error":"Traceback (most recent call last)"}'), "leak"),
        (_answer(b"400 Bad Request", b'{"error":"/tmp/x"}'), "leak"),
        (_answer(b"400 Bad Request", b"x" * 2000), "an error of 2000 bytes"),
        (_answer(b"400 Bad Request", b'{"error":"malformed"}'), ""),
        (_answer(b"500 Internal Server Error", b'{"error":"unexpected error on creating Triton parameter"}'), ""),
        (
            _answer(
                b"500 Internal Server Error",
                b'{"error":"failed to load \'a\\"b\', failed to poll from model repository"}',
            ),
            "",
        ),
    ],
    indirect=["bad_server"],
    ids=["silence", "500", "traceback", "path", "long", "good", "as Triton", "no such model"],
)
def test_violations_are_seen(bad_server: str, wrong: str) -> None:
    watch = cast(Watch, SimpleNamespace(address=bad_server))
    found = CLASSES["HTTP bodies"](random.Random(0), watch)[1]
    assert found.startswith(wrong) and bool(found) == bool(wrong)
