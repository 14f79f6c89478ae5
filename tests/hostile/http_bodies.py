"""F-SLOW, F-SIZE, F-CHUNK, F-BOMB, F-PATH: bodies, their time, and names in paths."""

import gzip
import random
import zlib
from collections.abc import Callable

from tests.hostile.http_case import (
    BODY,
    BODY_TIMEOUT_S,
    HEADER_TIMEOUT_S,
    LIMIT_BYTES,
    Table,
    chunked,
    get,
    head,
    post,
)

TE = b"Transfer-Encoding: chunked"
_SLACK_S = 4.0

SLOW = Table("F-SLOW")
_HEAD_S, _BODY_S = HEADER_TIMEOUT_S + _SLACK_S, BODY_TIMEOUT_S + _SLACK_S
_DRIP = [piece for line in (b"X-%d: y\r\n" % i for i in range(40)) for piece in (line, 0.2)]
_BYTES = [piece for i in range(60) for piece in (b" ", 0.2)]
SLOW.add("nothing", (), closes=True, within_s=_HEAD_S)
SLOW.add("half-request-line", b"GET /v2 HT", 408, closes=True, within_s=_HEAD_S)
SLOW.add("half-head", get()[:-2], 408, closes=True, within_s=_HEAD_S)
SLOW.add("headers-one-by-one", (get()[:-2], *_DRIP), 408, closes=True, within_s=_HEAD_S)
SLOW.add("second-head-half", get() + get()[:-2], 200, 408, closes=True, within_s=_HEAD_S)
SLOW.add("no-body", head(b"Content-Length: 10"), 408, closes=True, within_s=_BODY_S)
SLOW.add("half-body", post()[:-5], 408, closes=True, within_s=_BODY_S)
SLOW.add("body-byte-by-byte", (head(b"Content-Length: 100"), *_BYTES), 408, closes=True, within_s=_BODY_S)
SLOW.add("half-chunk", head(TE) + b"a\r\n{", 408, closes=True, within_s=_BODY_S)
SLOW.add("half-chunk-size", head(TE) + b"a", 408, closes=True, within_s=_BODY_S)
SLOW.add("no-last-chunk", chunked([BODY], b""), 408, closes=True, within_s=_BODY_S)
SLOW.add("no-body-after-100", head(b"Expect: 100-continue", b"Content-Length: 9"), 408, closes=True, within_s=_BODY_S)
SLOW.add("reads-late", (post() * 100, 0.5), *[200] * 100, closes=False)

SIZE = Table("F-SIZE")
_TOO_LARGE = f"exceeds the maximum allowed input size of {LIMIT_BYTES} bytes"


def _of_size(size: int) -> bytes:
    """A good request of this many bytes, which compress to about the half."""
    note = random.Random(0).randbytes(size // 2 + 1).hex().encode()
    start = b'{"note":"'
    return start + note[: size - len(start) - len(BODY) - 1] + b'",' + BODY[1:]


def _deflate(data: bytes) -> bytes:
    return zlib.compress(data, 1)


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def _chunks(data: bytes, size: int = 1 << 16) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def _whole(size: int) -> bytes:
    # Of a body that is too large nothing need be sent.
    return post(_of_size(size)) if size <= LIMIT_BYTES else head(b"Content-Length: %d" % size)


def _in_chunks(size: int) -> bytes:
    data = _of_size(size)
    if size <= LIMIT_BYTES:
        return chunked(_chunks(data))
    return chunked(_chunks(data[:LIMIT_BYTES]), b"%x\r\n" % (size - LIMIT_BYTES))


_WAYS: dict[str, Callable[[int], bytes]] = {
    "length": _whole,
    "chunked": _in_chunks,
    "one-chunk": lambda size: chunked([_of_size(size)]) if size <= LIMIT_BYTES else head(TE) + b"%x\r\n" % size,
    "gzip": lambda size: post(_gzip(_of_size(size)), b"Content-Encoding: gzip"),
    "deflate": lambda size: post(_deflate(_of_size(size)), b"Content-Encoding: deflate"),
    "chunked-gzip": lambda size: chunked(_chunks(_gzip(_of_size(size))), b"0\r\n\r\n", b"Content-Encoding: gzip"),
}
for way, make in _WAYS.items():
    for more in (-1, 0, 1):
        SIZE.add(
            f"{way}-{more:+d}",
            lambda make=make, more=more: (make(LIMIT_BYTES + more),),
            400 if more > 0 else 200,
            text=_TOO_LARGE if more > 0 else '"data":[1.0]',
            closes=None if more > 0 else False,
        )
for id, size in (("2^31", 2**31), ("2^40", 2**40), ("10^17", 10**17)):
    SIZE.add(f"length-{id}", head(b"Content-Length: %d" % size), 400, text=_TOO_LARGE, closes=True)
SIZE.add("of-metadata", head(b"Content-Length: %d" % (LIMIT_BYTES + 1), path=b"/v2/repository/index"), 400, closes=True)
SIZE.add("length-too-small", head(b"Content-Length: 5") + BODY, 400, 400, closes=True)
SIZE.add("length-0", head(b"Content-Length: 0") + BODY, 400, 400, closes=True)
SIZE.add("length-missing", head() + BODY, 400, 400, closes=True)
SIZE.add("length-too-large-then-gone", head(b"Content-Length: 500") + BODY, closes=True, linger=True)
SIZE.add("chunks-then-gone", chunked([BODY], b""), closes=True, linger=True)

CHUNK = Table("F-CHUNK")
_MANY = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."


def _ones(count: int, end: bytes = b"0\r\n\r\n") -> bytes:
    """A body in this many chunks of one byte."""
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
    return head(TE) + body + b"1\r\n \r\n" * (count - len(BODY)) + end


CHUNK.add("65536", lambda: (_ones(65_536),), 200, closes=False)
CHUNK.add("65537", lambda: (_ones(65_537, b""),), 400, text=_MANY, closes=True)
CHUNK.add("1000000", lambda: (_ones(1_000_000),), 400, text=_MANY, closes=True)
CHUNK.add("1-byte-in-hex-of-8-digits", lambda: (head(TE) + b"00000001\r\n{\r\n0\r\n\r\n",), 400, closes=False)
CHUNK.add("9-digits", lambda: (head(TE) + b"000000001\r\n{\r\n0\r\n\r\n",), 400, closes=True)

BOMB = Table("F-BOMB")
_GZIP, _DEFLATE = b"Content-Encoding: gzip", b"Content-Encoding: deflate"
_ZIPPED = _gzip(BODY)
_INVALID = "failed to decompress the request body: invalid data"
_SHORT = "failed to decompress the request body: unexpected end of data"
_BEHIND = "failed to decompress the request body: unexpected data after its end"
_RAW = zlib.compressobj(9, zlib.DEFLATED, -15)
for id, body, coding, text in (
    ("damaged", _ZIPPED[:20] + b"\xff\xff" + _ZIPPED[22:], _GZIP, "failed to decompress the request body"),
    ("plain-as-gzip", BODY, _GZIP, _INVALID),
    ("plain-as-deflate", BODY, _DEFLATE, _INVALID),
    ("deflate-as-gzip", _deflate(BODY), _GZIP, _INVALID),
    ("gzip-as-deflate", _ZIPPED, _DEFLATE, _INVALID),
    ("raw-deflate", _RAW.compress(BODY) + _RAW.flush(), _DEFLATE, _INVALID),
    ("truncated", _ZIPPED[:-9], _GZIP, _SHORT),
    ("no-trailer", _ZIPPED[:-8], _GZIP, _SHORT),
    ("head-alone", _ZIPPED[:10], _GZIP, _SHORT),
    ("empty", b"", _GZIP, _SHORT),
    ("bad-crc", _ZIPPED[:-8] + bytes(4) + _ZIPPED[-4:], _GZIP, _INVALID),
    ("bad-length", _ZIPPED[:-4] + b"\xff" * 4, _GZIP, _INVALID),
    ("bad-method", b"\x1f\x8b\x07" + _ZIPPED[3:], _GZIP, _INVALID),
    ("two-members", _ZIPPED * 2, _GZIP, _BEHIND),
    ("data-behind", _ZIPPED + b"x", _GZIP, _BEHIND),
    ("nested-gzip", _gzip(_ZIPPED), _GZIP, "failed to parse the request JSON buffer"),
    ("bad-json-inside", _gzip(b"{"), _GZIP, "failed to parse the request JSON buffer"),
):
    BOMB.add(id, post(body, coding), 400, text=text, closes=False)
for id, size in (("1000-to-1", 3 << 20), ("64-mib", 64 << 20)):
    BOMB.add(
        f"gzip-{id}",
        lambda size=size: (post(gzip.compress(b" " * size, 9, mtime=0), _GZIP),),
        400,
        text="decompressed request",
        closes=False,
    )
BOMB.add("ten-gzips", lambda: (post(_nested(10), _GZIP),), 400, closes=False)
for id, coding in (
    ("twice", b"gzip, gzip"),
    ("gzip-and-deflate", b"gzip, deflate"),
    ("zstd", b"zstd"),
    ("br", b"br"),
    ("compress", b"compress"),
    ("junk", b"\xff\xfe"),
    ("path", b"../../x"),
):
    BOMB.add(f"coding-{id}", post(_ZIPPED, b"Content-Encoding: " + coding), 501, closes=False)
BOMB.add("two-coding-headers", post(_ZIPPED, _GZIP, _GZIP), 501, closes=False)
BOMB.add("identity", post(BODY, b"Content-Encoding: identity"), 200, closes=False)
BOMB.add("upper-case", post(_ZIPPED, b"Content-Encoding: GZIP"), 200, closes=False)


def _nested(depth: int) -> bytes:
    data = b" " * (1 << 20)
    for _ in range(depth):
        data = gzip.compress(data, 9, mtime=0)
    return data


PATHS = Table("F-PATH")
_TRAVERSALS = (
    b"..",
    b"%2e%2e",
    b"%2E.",
    b"%2e%2e%2fsimple",
    b"..%2fsimple",
    b"..%2f..%2f..%2fetc%2fpasswd",
    b"..%5c..%5cx",
    b"..\\..\\x",
    b"%2fetc%2fpasswd",
    b"simple%2f..%2fsimple",
    b"simple%2f1",
    b"simple%00",
    b"%00",
    b".",
    b"%2e",
    b"C:%5cx",
    b"%5c%5chost%5cshare",
)
_ODD = (
    b"...",
    b"model..1",
    b"~",
    b"~root",
    b"%252e%252e%252fsimple",
    b"%c0%ae%c0%ae",
    b"%c0%ae%c0%ae%c0%afsimple",
    b"%e2%80%a4%e2%80%a4",
    b"%ff%fe",
    b"%",
    b"%zz",
    b"%u002e",
    b"$%7bHOME%7d",
    b"$(id)",
    b"%0d%0aX:%20y",
    b"%1b[31m",
    b"a" * 255,
    b"a" * 256,
    b"a" * 5000,
    b"simple%20",
    b"%20simple",
    b"SIMPLE",
    b"simple;1",
    b"simple%3fx",
    b"__class__",
    b"config.pbtxt",
    b"*",
    b"file:x",
)


def _shown(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    return text if len(text) < 40 else f"{text[:5]}-{len(text)}"


for name in _TRAVERSALS + _ODD:
    PATHS.add(f"infer-{_shown(name)}", post(path=b"/v2/models/%s/infer" % name), 404)
    PATHS.add(f"ready-{_shown(name)}", get(b"/v2/models/%s/ready" % name), 400)
for name in _TRAVERSALS:
    PATHS.add(f"load-{_shown(name)}", post(b"{}", path=b"/v2/repository/models/%s/load" % name), 400)
for name in (b"..", b"%2e%2e%2fsimple", b"~", b"%00"):
    for kind, status in ((b"config", 404), (b"stats", 400), (b"versions/1", 404), (b"trace/setting", 400)):
        PATHS.add(f"{kind.decode()}-{_shown(name)}", get(b"/v2/models/%s/%s" % (name, kind)), status)
for version in (b"0", b"-1", b"01x", b"1.0", b"latest", b"..", b"%31", b"1%00"):
    PATHS.add(f"version-{_shown(version)}", post(path=b"/v2/models/floats/versions/%s/infer" % version), 404)
for version in (b"9" * 19, b"9" * 20, b"9" * 400):
    PATHS.add(f"version-{_shown(version)}", post(path=b"/v2/models/floats/versions/%s/infer" % version), 400)
for path in (
    b"//v2",
    b"/v2/",
    b"/v2//health/live",
    b"/v2/../v2",
    b"/v2/./health/live",
    b"/V2",
    b"/v2%2fhealth%2flive",
    b"/%76%32",
    b"/v2/models/",
    b"/v2/models//infer",
    b"/v2/models/floats/infer/",
    b"/v2/models/floats/versions//infer",
    b"/v2/docs/../../config.pbtxt",
    b"/v2/docs/%2e%2e/%2e%2e/x",
    b"/v2/docs/..%2f..%2fx",
    b"/etc/passwd",
    b"/.git/config",
    b"/metrics",
    b"/-/routes",
    b"/api/serve/applications/",
    b"/",
    b"/console/main.js",
    b"/v2/console/state",
    b"/v2\\health",
    b"/v2/health/live;x",
):
    PATHS.add(f"get-{_shown(path)}", get(path), 404)
PATHS.add("not-percent-encoded", get("/v2/models/․․/ready".encode()), 400, closes=True)
PATHS.add("query-is-ignored", get(b"/v2/health/live?../../x=%00"), 200)

CASES = (*SLOW.cases, *SIZE.cases, *CHUNK.cases, *BOMB.cases, *PATHS.cases)
