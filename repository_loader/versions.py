"""Version folders of a model, and which of them its version policy serves."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelVersionPolicy

from repository_loader.subfolders import broken_links, subfolders

MAX_VERSION = 2**63 - 1

_CANONICAL = re.compile(r"0|[1-9][0-9]*")
_NOT_VERSIONS = frozenset({"warmup", "initial_state", "configs"})


class NoVersionError(Exception):
    """The policy leaves nothing to serve."""

    def __init__(self, model_name: str) -> None:
        super().__init__(f"at least one version must be available under the version policy of model '{model_name}'")


@dataclass(frozen=True, slots=True)
class VersionFolders:
    """What stands in a model's folder: version numbers, ascending, and remarks about other folders and broken links."""

    numbers: tuple[int, ...]
    warnings: tuple[str, ...]


def find_versions(model_path: str) -> VersionFolders:
    """List the version folders of a model.

    Stricter than Triton in one point: `1abc` is no version, where Triton's `stoll` takes it for 1.
    """
    found = read_version_names(subfolders(model_path))
    links = (f"ignore {name!a} which is a link to nothing" for name in broken_links(model_path))
    return VersionFolders(found.numbers, (*found.warnings, *links))


def read_version_names(names: Iterable[str]) -> VersionFolders:
    """Tell version folders from others by name."""
    numbers: list[int] = []
    warnings: list[str] = []
    for name in names:
        if _CANONICAL.fullmatch(name) and len(name) < 20 and int(name) <= MAX_VERSION:
            numbers.append(int(name))
        elif name.startswith("0") and name.isdigit():
            warnings.append(f"ignore version directory '{name}' which contains leading zeros in its directory name")
        elif name not in _NOT_VERSIONS and not name.startswith((".", "__")):
            warnings.append(f"ignore version directory '{name}' which fails to convert to integral number")
    return VersionFolders(tuple(sorted(numbers)), tuple(warnings))


def select_versions(policy: ModelVersionPolicy | None, available: Sequence[int], model_name: str) -> tuple[int, ...]:
    """Return the versions that the policy serves, ascending.

    No policy is `latest { num_versions: 1 }`, and one that says nothing is `all`.

    Raises:
        NoVersionError: none is left, as with `latest { num_versions: 0 }`, of which `latest { }` is another spelling.
    """
    ordered = sorted(available)
    if policy is None:
        chosen = ordered[-1:]
    elif policy.HasField("specific"):
        wanted = set(policy.specific.versions)
        chosen = [number for number in ordered if number in wanted]
    elif policy.HasField("latest"):
        count = policy.latest.num_versions
        chosen = ordered[-count:] if count else []
    else:
        chosen = ordered
    if not chosen:
        raise NoVersionError(model_name)
    return tuple(chosen)


def missing_versions(policy: ModelVersionPolicy, available: Sequence[int]) -> tuple[int, ...]:
    """Return the versions that a specific policy names and the folder does not have."""
    return tuple(sorted(set(policy.specific.versions) - set(available)))
