import pytest

from app.edge.header_forwarding import HeaderForwarding

HEADERS = [(b"my_header_1", b"a"), (b"MY_HEADER_2", b"b"), (b"other", b"c")]
PATTERNS = {
    "any case": ("MY_HEADER.*", ["my_header_1", "MY_HEADER_2"]),
    "upper case": ("(?-i)MY_HEADER.*", ["MY_HEADER_2"]),
    "lower case": ("(?-i)my_header.*", ["my_header_1"]),
    "any case, said": ("(?i)my_HEADER", ["my_header_1", "MY_HEADER_2"]),
    "the case of a part": ("(?-i:MY)_header", ["MY_HEADER_2"]),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("pattern", "names"), PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_goes_by_the_case_where_it_says_so(pattern: str, names: list[str]) -> None:
    assert list(HeaderForwarding(pattern).choose(HEADERS)) == names
