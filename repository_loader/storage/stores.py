"""Opens the store that an address names."""

from repository_loader.storage.http_archive import HttpArchive
from repository_loader.storage.location import Location
from repository_loader.storage.model_cache import ModelCache
from repository_loader.storage.object_store import ObjectStore
from repository_loader.storage.remote_store import RemoteStore


def open_store(location: Location, cache: ModelCache) -> RemoteStore:
    """Return the store; it is asked nothing yet.

    Raises:
        StorageError: what it needs is not installed, or the credentials cannot be used.
    """
    return HttpArchive(location, cache) if location.scheme == "http" else ObjectStore(location)
