"""F-DEPTH: nesting."""

from tests.protocol.cases.case import Table, with_data

T = Table("F-DEPTH", "4.4")

_TOO_DEEP = "JSON nesting depth exceeds maximum allowed limit (100)"


def _nested(depth: int, core: str = "1") -> str:
    return "[" * depth + core + "]" * depth


for depth, text in ((1, ""), (2, ""), (99, ""), (100, ""), (101, _TOO_DEEP), (1000, _TOO_DEEP), (1024, _TOO_DEEP)):
    T.add(f"data-{depth}", with_data(_nested(depth)), text)
    T.add(f"mixed-data-{depth}", with_data(f"[{_nested(depth - 1)},2]" if depth > 1 else "[1,2]", [2]), text)
    T.add(f"nan-data-{depth}", with_data(_nested(depth, "NaN")), text, status=400 if text else 200)
for depth in (100, 101):
    text = _TOO_DEEP if depth > 100 else ""
    T.add(f"string-data-{depth}", with_data(_nested(depth, '"a"'), model="strings"), text, model="strings")
for depth in (1025, 10_000, 250_000):
    T.add(f"data-{depth}", lambda depth=depth: with_data(_nested(depth)).encode(), _TOO_DEEP)
    T.add(f"document-{depth}", lambda depth=depth: _nested(depth).encode(), _TOO_DEEP)
    T.add(f"open-{depth}", lambda depth=depth: b"[" * depth, _TOO_DEEP if depth > 2000 else "failed to parse")
    T.add(f"objects-{depth}", lambda depth=depth: b'{"a":' * depth + b"1" + b"}" * depth, _TOO_DEEP)
    T.add(f"nan-{depth}", lambda depth=depth: with_data(_nested(depth, "NaN")).encode(), _TOO_DEEP)
T.add("nan-first-250000", lambda: b"[NaN," + b"[" * 250_000, _TOO_DEEP)
T.add("parameter-50", with_data("[1]", more=f'"parameters":{{"p":{_nested(50)}}},'), "parameter 'p' has invalid type")
T.add("parameter-2000", with_data("[1]", more=f'"parameters":{{"p":{_nested(2000)}}},'), _TOO_DEEP)
T.add("unused-member-200", with_data("[1]", more=f'"note":{_nested(200)},'))
T.add("shape-3", with_data("[1]", "[[[1]]]"), "Unable to parse 'shape'")

CASES = tuple(T.cases)
