"""F-WIRE, F-HOST, F-HDR: what a head can get wrong."""

from tests.hostile.http_case import BODY, HOST, PATH, Table, chunked, get, head, post

WIRE = Table("F-WIRE")
TE = b"Transfer-Encoding: chunked"
_GOOD_CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
_LENGTH = b"Content-Length: %d" % len(BODY)

for id, sent, status in (
    ("length-and-coding", head(_LENGTH, TE) + _GOOD_CHUNKS, 400),
    ("coding-and-length", head(TE, _LENGTH) + _GOOD_CHUNKS, 400),
    ("two-lengths", head(b"Content-Length: 2", b"Content-Length: 3") + b"{}", 400),
    ("two-equal-lengths", head(b"Content-Length: 2", b"Content-Length: 2") + b"{}", 400),
    ("length-list", head(b"Content-Length: 2, 2") + b"{}", 400),
    ("length-plus", head(b"Content-Length: +2") + b"{}", 400),
    ("length-minus", head(b"Content-Length: -1"), 400),
    ("length-underscore", head(b"Content-Length: 1_0") + b"{}", 400),
    ("length-hex", head(b"Content-Length: 0x2") + b"{}", 400),
    ("length-float", head(b"Content-Length: 2.0") + b"{}", 400),
    ("length-empty", head(b"Content-Length: ") + b"{}", 400),
    ("length-word", head(b"Content-Length: two") + b"{}", 400),
    ("length-arabic-digits", head("Content-Length: ٢".encode()) + b"{}", 400),
    ("length-2^64", head(b"Content-Length: 18446744073709551616"), 400),
    ("length-20-digits", head(b"Content-Length: 99999999999999999999"), 400),
    ("length-2^63-1", head(b"Content-Length: 9223372036854775807"), 400),
    ("coding-gzip-chunked", head(b"Transfer-Encoding: gzip, chunked"), 501),
    ("coding-chunked-twice", head(b"Transfer-Encoding: chunked, chunked"), 400),
    ("coding-not-last", head(b"Transfer-Encoding: chunked, identity"), 400),
    ("coding-identity", head(b"Transfer-Encoding: identity"), 400),
    ("coding-unknown", head(b"Transfer-Encoding: xchunked"), 400),
    ("coding-vertical-tab", head(b"Transfer-Encoding: \x0bchunked"), 400),
    ("two-codings", head(TE, TE) + _GOOD_CHUNKS, 400),
    ("coding-in-1.0", (head(TE) + _GOOD_CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
    ("chunk-size-word", head(TE) + b"xyz\r\n", 400),
    ("chunk-size-minus", head(TE) + b"-1\r\n", 400),
    ("chunk-size-plus", head(TE) + b"+1\r\na\r\n", 400),
    ("chunk-size-0x", head(TE) + b"0x1\r\na\r\n", 400),
    ("chunk-size-empty", head(TE) + b"\r\n", 400),
    ("chunk-size-overflow", head(TE) + b"FFFFFFFFFFFFFFFFF\r\n", 400),
    ("chunk-size-2^32-1", head(TE) + b"FFFFFFFF\r\n", 400),
    ("chunk-size-space-before", head(TE) + b" 2\r\n{}\r\n", 400),
    ("chunk-line-feed", head(TE) + b"2\n{}\n0\n\n" + b" " * 300, 400),
    ("chunk-without-end", head(TE) + b"1\r\nabc\r\n", 400),
    ("chunk-bare-cr", head(TE) + b"2\r\n{}\rX0\r\n", 400),
    ("chunk-line-feed-in-extension", head(TE) + b"2;a\n\r\n{}\r\n0\r\n\r\n", 400),
    ("chunk-line-feed-in-trailer", head(TE) + b"0\r\nX: a\n\nGET /v2 HTTP/1.1\r\n\r\n", 400),
    ("chunk-nul-in-trailer", head(TE) + b"0\r\nX: \0\r\n\r\n", 400),
    ("chunk-trailer-without-colon", head(TE) + b"0\r\nXy\r\n\r\n", 400),
    ("chunk-1-mb-extension", head(TE) + b"2;" + b"x" * 1_000_000, 400),
    ("chunk-long-extension", head(TE) + b"2;" + b"x" * 300 + b"\r\n", 400),
    ("chunk-long-trailers", head(TE) + b"0\r\n" + b"X: y\r\n" * 3000, 431),
    ("bare-line-feeds", b"GET /v2 HTTP/1.1\nHost: localhost\n\n", 400),
    ("one-bare-line-feed", b"GET /v2 HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n", 400),
    ("bare-cr", b"GET /v2 HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n", 400),
    ("folded-header", get(b"/v2", b"X: y\r\n z"), 400),
    ("nul-in-value", get(b"/v2", b"X: \0"), 400),
    ("nul-in-name", get(b"/v2", b"X\0: y"), 400),
    ("control-in-value", get(b"/v2", b"X: \x07y"), 400),
    ("space-before-colon", get(b"/v2", b"X : y"), 400),
    ("no-colon", get(b"/v2", b"Xy"), 400),
    ("empty-name", get(b"/v2", b": y"), 400),
    ("first-header-indented", b"GET /v2 HTTP/1.1\r\n " + HOST + b"\r\n", 400),
    ("http-0.9", b"GET /v2\r\n\r\n", 505),
    ("http-2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("http-3.0", b"GET /v2 HTTP/3.0\r\n" + HOST + b"\r\n", 400),
    ("http-1.2", b"GET /v2 HTTP/1.2\r\n" + HOST + b"\r\n", 400),
    ("version-lower-case", b"GET /v2 http/1.1\r\n" + HOST + b"\r\n", 400),
    ("tls-hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), 400),
    ("ssh-banner", b"SSH-2.0-OpenSSH_9.6\r\n\r\n", 400),
    ("zeros", bytes(100), 400),
    ("blank-lines", b"\r\n\r\n", 400),
    ("method-lower-case", b"get /v2 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("method-unknown", b"BREW /v2 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("method-connect", b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("absolute-form", b"GET http://evil/v2 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("target-without-slash", b"GET v2 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("target-with-space", b"GET /v2 /x HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("target-with-nul", b"GET /v2\0 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("target-16-kib", b"GET /" + b"a" * (16 << 10) + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    ("target-8-mb", b"GET /" + b"a" * 8_000_000, 431),
    ("header-64-kib", get(b"/v2", b"X: " + b"y" * (64 << 10)), 431),
    ("header-8-mb", get(b"/v2", b"X: " + b"y" * (8 << 20)), 431),
    ("101-headers", get(b"/v2", *[b"X: y"] * 100), 431),
    ("100000-headers", get(b"/v2", *[b"X: y"] * 100_000), 431),
    ("unknown-expectation", head(b"Expect: tea", b"Content-Length: 2") + b"{}", 417),
    ("two-json-lengths", post(BODY, *[b"Inference-Header-Content-Length: 2"] * 2), 400),
):
    WIRE.add(id, sent, status, closes=True)

_NEXT = get()
for id, sent, statuses in (
    ("pipelined", _NEXT * 3, (200, 200, 200)),
    ("pipelined-infer", post() * 3, (200, 200, 200)),
    ("good-then-bad", _NEXT + get(b"/v2", b"X : y") + _NEXT, (200, 400)),
    ("bad-then-good", get(b"/v2", b"X : y") + _NEXT, (400,)),
    ("smuggled-behind-length-and-coding", head(b"Content-Length: 5", TE) + b"0\r\n\r\n" + _NEXT, (400,)),
    ("smuggled-behind-two-lengths", head(b"Content-Length: 0", b"Content-Length: 40") + _NEXT, (400,)),
    ("smuggled-behind-bad-chunk", head(TE) + b"0;\n\r\n\r\n" + _NEXT, (400,)),
):
    WIRE.add(id, sent, *statuses, closes=statuses[-1] != 200)
WIRE.add("trailers", chunked([BODY], b"0\r\nX: y\r\nContent-Length: 5\r\n\r\n"), 200, closes=False)
WIRE.add("short-extension", head(TE) + b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY), 200, closes=False)
WIRE.add("close", post(BODY, b"Connection: close"), 200, closes=True)
WIRE.add("http-1.0", post().replace(b"HTTP/1.1", b"HTTP/1.0"), 200, closes=True)
WIRE.add("head", get().replace(b"GET", b"HEAD"), 405, bodiless=True)
WIRE.add("upgrade-h2c", get(b"/v2/health/live", b"Connection: Upgrade", b"Upgrade: h2c"), 200)
WIRE.add("upgrade-websocket", get(b"/v2/health/live", b"Connection: Upgrade", b"Upgrade: websocket"), 200)
WIRE.add("100-continue", (head(b"Expect: 100-continue", _LENGTH), 0.2, BODY), 200, closes=False)
WIRE.add("split-into-bytes", tuple(post()[i : i + 1] for i in range(len(post()))), 200, closes=False)
WIRE.add("100-headers", get(b"/v2", *[b"X: y"] * 99), 200, closes=False)
WIRE.add("header-63-kib", get(b"/v2", b"X: " + b"y" * (63 << 10)), 200, closes=False)

HOSTS = Table("F-HOST")
for id, value in (
    ("path", b"a/v1?"),
    ("slash", b"a/"),
    ("query", b"a?b"),
    ("fragment", b"a#"),
    ("user", b"a@b"),
    ("backslash", b"a\\b"),
    ("space", b"a b"),
    ("tab", b"a\tb"),
    ("300-bytes", b"a" * 300),
    ("unicode", "żółw".encode()),
    ("not-utf-8", b"\xff\xfe"),
    ("port-word", b"a:b"),
    ("port-long", b"a:123456"),
    ("port-minus", b"a:-1"),
    ("two-ports", b"a:1:2"),
    ("open-bracket", b"[::1"),
    ("no-address", b"[]"),
    ("bracket-word", b"[host]"),
    ("quotes", b'"a"'),
    ("angle", b"<a>"),
    ("url", b"http://a"),
    ("two-names", b"a, b@"),
    ("percent-slash", b"a^b"),
):
    HOSTS.add(id, get(b"/v2", host=b"Host: " + value + b"\r\n"), 400, closes=True)
HOSTS.add("none", get(b"/v2", host=b""), 400, closes=True)
HOSTS.add("none-infer", post(host=b""), 400, closes=True)
HOSTS.add("two", get(b"/v2", host=HOST * 2), 400, closes=True)
HOSTS.add("two-different", get(b"/v2", host=HOST + b"Host: evil\r\n"), 400, closes=True)
HOSTS.add("none-in-1.0", b"GET /v2 HTTP/1.0\r\n\r\n", 200, closes=True)
for id, value in (("address", b"127.0.0.1:8000"), ("ipv6", b"[::1]:8000"), ("name", b"a.b-c"), ("empty", b"")):
    HOSTS.add(id, get(b"/v2", host=b"Host: " + value + b"\r\n"), 200, closes=False)

HDR = Table("F-HDR")
for id, header in (
    ("timeout-0", b"x-request-timeout-seconds: 0"),
    ("timeout-negative", b"x-request-timeout-seconds: -1"),
    ("timeout-tiny", b"x-request-timeout-seconds: 0.000001"),
    ("disconnect-disabled", b"x-request-disconnect-disabled: ?1"),
    ("multiplexed-model", b"serve_multiplexed_model_id: other"),
    ("multiplexed-model-path", b"serve_multiplexed_model_id: ../../x"),
    ("request-id", b"x-request-id: " + b"r" * 5000),
    ("request-id-ansi", b"x-request-id: \xc2\x9b31m"),
    ("forwarded-for", b"x-forwarded-for: 1.2.3.4, evil"),
    ("forwarded-host", b"x-forwarded-host: evil/path"),
    ("forwarded-proto", b"x-forwarded-proto: javascript"),
    ("forwarded-prefix", b"x-forwarded-prefix: /../.."),
    ("forwarded", b"Forwarded: for=_x;host=evil"),
    ("original-url", b"x-original-url: /v2/repository/index"),
    ("rewrite-url", b"x-rewrite-url: /v2/repository/index"),
    ("method-override", b"x-http-method-override: DELETE"),
    ("traceparent-junk", b"traceparent: junk"),
    ("traceparent-long", b"traceparent: " + b"0" * 2000),
    ("tracestate-junk", b"tracestate: ,,,=,"),
    ("baggage", b"baggage: a=b;c,,"),
    ("cookie", b"Cookie: a=b; a=b"),
    ("authorization", b"Authorization: Bearer x"),
    ("range", b"Range: bytes=0-1"),
    ("if-none-match", b"If-None-Match: *"),
    ("content-type-junk", b"Content-Type: \xff/\xff; charset=utf-7"),
    ("accept-encoding-junk", b"Accept-Encoding: ;;q=,,*;q=9,gzip;q=x"),
    ("connection-lists-length", b"Connection: content-length"),
    ("lane", b"x-eagleray-lane: 1"),
):
    HDR.add(id, post(BODY, header), 200, text='"data":[1.0]', closes=False)
HDR.add("timeout-of-metadata", get(b"/v2", b"x-request-timeout-seconds: 0"), 200, closes=False)
HDR.add("original-url-of-metadata", get(b"/v2", b"x-original-url: /v2/repository/index"), 200, text='"extensions"')
HDR.add("override-of-metadata", get(b"/v2", b"x-http-method-override: POST"), 200, closes=False)
HDR.add("unknown-path", get(b"/v1/x" + PATH, b"x-forwarded-for: a"), 404, closes=False)

CASES = (*WIRE.cases, *HOSTS.cases, *HDR.cases)
