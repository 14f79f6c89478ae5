import pytest

from app.cache_config import cache_bytes
from app.settings import Settings


@pytest.mark.parametrize(
    ("entries", "size"), [((), 0), (("local,size=1048576",), 1 << 20), (("local,size=1024", "local,size=7000"), 7000)]
)
def test_reads_tritons_form(entries: tuple[str, ...], size: int) -> None:
    assert cache_bytes(entries) == size
    assert Settings(model_repository=("/r",), cache_config=entries).response_cache_bytes() == size


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        (("redis,host=h",), "there is no cache 'redis'"),
        (("local,size=1", "redis,host=h"), "found multiple cache configurations"),
        (("local",), "not of the form local,size=<bytes>"),
        (("local,size=-1",), "not of the form"),
        (("local,colour=1",), "not of the form"),
        (("local,size=1023",), "a cache of 1023 bytes is too small for any answer; at least 1024, or 0 for none"),
        ((f"local,size={10**26}",), "is more than 4611686018427387904 bytes"),
    ],
)
def test_refuses_what_it_does_not_have(entries: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Settings(model_repository=("/r",), cache_config=entries)
