"""Random changes of bytes, the same for the same seed."""

import random

TOKENS = (
    b"\0",
    b"\r\n",
    b"\n",
    b"\xff\xff\xff\xff",
    b"-1",
    b"0",
    b"99999999999999999999",
    b"1e400",
    b"NaN",
    b"null",
    b"{}",
    b"[" * 200,
    b'"',
    b"../",
    b"%2e%2e%2f",
    b"%00",
    b"\xc0\xaf",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"\x0a\xff\xff\xff\xff\x7f",
    b"A" * 300,
)


def mutate(rng: random.Random, seed: bytes, others: tuple[bytes, ...]) -> bytes:
    """Return the seed after one to six changes; `others` lend it pieces."""
    data = bytearray(seed)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 40)))
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = rng.choice(TOKENS)
        elif kind == 2:
            data[at:to] = rng.choice(TOKENS)
        elif kind == 3:
            del data[at:to]
        elif kind == 4:
            data[at:at] = data[at:to] * rng.choice((1, 2, 20))
        elif kind == 5:
            data[at:to] = rng.randbytes(to - at)
        elif kind == 6:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data[at:to] = other[start : start + rng.choice((4, 20, 100))]
        else:
            del data[at:]
    return bytes(data)
