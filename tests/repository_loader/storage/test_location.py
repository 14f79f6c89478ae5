import pytest

from repository_loader.storage.location import Location, LocationError, is_remote, read_location

SHA = "0" * 64

READ = {
    "s3://bucket": ("s3", "bucket", "", "", ""),
    "s3://bucket/a/b/": ("s3", "bucket", "a/b", "", ""),
    "s3://bucket//a///b": ("s3", "bucket", "a/b", "", ""),
    "S3://bucket/a": ("s3", "bucket", "a", "", ""),
    "s3://localhost:9000/bucket/a": ("s3", "bucket", "a", "http://localhost:9000", ""),
    "s3://https://minio.example.com:443/bucket/a": ("s3", "bucket", "a", "https://minio.example.com:443", ""),
    "s3://http://10.0.0.1:9000//bucket": ("s3", "bucket", "", "http://10.0.0.1:9000", ""),
    "gs://bucket/a": ("gs", "bucket", "a", "", ""),
    "as://account/container/a/b": ("as", "container", "a/b", "", "account"),
}


@pytest.mark.parametrize("address", READ)
def test_reads_tritons_forms(address: str) -> None:
    found = read_location(address)
    assert (found.scheme, found.bucket, found.prefix, found.endpoint, found.account) == READ[address]
    assert is_remote(address) and read_location(found.uri) == found


def test_reads_archives() -> None:
    plain = read_location("https://example.com/models.tar.gz")
    assert plain == Location("https://example.com/models.tar.gz", "http")
    told = read_location(f"http://example.com:8080/a/models.zip?v=2#folder=/repo/&sha256={SHA}")
    assert (told.scheme, told.prefix, told.sha256) == ("http", "repo", SHA)


@pytest.mark.parametrize(
    "address",
    [
        "ftp://host/models",
        "s3://",
        "s3://bucket/../other",
        "as://account",
        "https://example.com/models",
        "https://user:password@example.com/models.zip",
        "https://example.com/models.zip#folder=../up",
        "https://example.com/models.zip#sha256=12",
        "https://example.com/models.zip#what=1",
    ],
)
def test_refuses_what_it_does_not_know(address: str) -> None:
    with pytest.raises(LocationError):
        read_location(address)


@pytest.mark.parametrize("path", ["models", "/models", "./a:b/c", "C:\\models"])
def test_paths_are_not_addresses(path: str) -> None:
    assert not is_remote(path)
