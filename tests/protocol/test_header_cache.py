import pytest

from protocol.header_cache import HeaderCache, split_leading_id


class Entry:
    def __init__(self) -> None:
        self.used = False


def test_entries_that_are_used_outlive_a_full_cache() -> None:
    cache: HeaderCache[Entry] = HeaderCache(4, 100)
    for key in (b"a", b"b", b"c", b"d"):
        cache.put(key, Entry())
    cache.entries[b"b"].used = True
    cache.put(b"e", Entry())
    assert set(cache.entries) == {b"b", b"e"}
    assert not cache.entries[b"b"].used


def test_the_cache_never_grows_beyond_its_capacity() -> None:
    cache: HeaderCache[Entry] = HeaderCache(4, 100)
    for number in range(1000):
        entry = Entry()
        entry.used = number % 3 > 0
        cache.put(b"%d" % number, entry)
        assert len(cache.entries) <= 4


def test_headers_that_never_return_are_not_kept_for_a_while() -> None:
    cache: HeaderCache[Entry] = HeaderCache(4, 100)
    for number in range(100):
        cache.put(b"%d" % number, Entry())
    assert not cache.entries
    kept = []
    for number in range(5000):
        cache.put(b"%d" % number, Entry())
        kept.append(len(cache.entries))
    assert sum(kept) > 0


def test_long_headers_are_not_kept() -> None:
    cache: HeaderCache[Entry] = HeaderCache(4, 3)
    cache.put(b"abc", Entry())
    cache.put(b"abcd", Entry())
    assert set(cache.entries) == {b"abc"}


@pytest.mark.parametrize(
    ("header", "split"),
    [
        (b'{"id":"7","inputs":[]}', ("7", b'","inputs":[]}')),
        (b'{ "id" : "" }', ("", b'" }')),
        (b'{"id":"a\\"b"}', None),
        (b'{"id":"\xc5\xbc"}', None),
        (b'{"id":"a\nb"}', None),
        (b'{"id":7}', None),
        (b'{"id":"7', None),
        (b'{"inputs":[],"id":"7"}', None),
    ],
)
def test_only_a_plain_leading_id_is_split_off(header: bytes, split: tuple[str, bytes] | None) -> None:
    assert split_leading_id(header) == split
