"""A process that shares a response ring, for `test_response_ring.py`.

Its arguments are the file and its size. It reads lines `keep <n>`, `find <n>`, `half <n>` (begin to write an entry and
stop there, with a child that outlives this process) and `busy` (keep and find until it is killed); it answers each with
a line: `ok`, `found`, `none` or `wrong`.
"""

import fcntl
import hashlib
import itertools
import os
import random
import sys
from pathlib import Path

from deployments.core.response_ring import ResponseRing


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def content_of(number: int) -> bytes:
    """Return what belongs to a number: of some length, and different in every part."""
    return random.Random(number).randbytes(16) * (number % 500 + 1)


def find(ring: ResponseRing, number: int) -> str:
    found = ring.find(key_of(number))
    return "none" if found is None else "found" if found == content_of(number) else "wrong"


def stop_half_way(ring: ResponseRing, number: int) -> None:
    fcntl.lockf(ring._descriptor, fcntl.LOCK_EX)
    begins = ring._room(8192)
    assert begins is not None
    place = ring._start + begins % ring._capacity
    ring._map[place + 64 : place + 4096] = b"!" * 4032
    if not os.fork():
        sys.stdin.read()
        os._exit(0)


def main(file: str, size: str) -> None:
    ring = ResponseRing(Path(file), int(size))
    print("ok", flush=True)
    for line in sys.stdin:
        command, number = line.split()
        if command == "keep":
            ring.keep(key_of(int(number)), (content_of(int(number)),))
            print("ok", flush=True)
        elif command == "find":
            print(find(ring, int(number)), flush=True)
        elif command == "half":
            stop_half_way(ring, int(number))
            print("ok", flush=True)
        elif command == "busy":
            hits = 0
            choice = random.Random(int(number))
            for step in itertools.count():
                any_number = choice.randrange(300)
                ring.keep(key_of(any_number), (content_of(any_number),))
                outcome = find(ring, choice.randrange(300))
                hits += outcome == "found"
                if outcome == "wrong" or (step % 200 == 199 and hits):
                    print(outcome if outcome == "wrong" else "ok", flush=True)


main(*sys.argv[1:])
