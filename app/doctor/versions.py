"""The versions of what matters, and where nodes have different ones."""

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from app.doctor.finding import ERROR, OK, Finding

_PACKAGES = ("eagleray", "ray", "numpy", "onnxruntime", "onnxruntime-gpu", "torch")


def compare(told: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Name each package of which nodes have different versions; `told` are the versions by node."""
    same = True
    for package in ("python", *_PACKAGES):
        found = {node: each.get(package, "none") for node, each in told.items()}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{each} on {node}" for node, each in found.items())
            yield Finding(ERROR, "nodes", f"{package} differs: {listed}")
            same = False
    if same:
        yield Finding(OK, "nodes", f"{len(told)} {'node' if len(told) == 1 else 'nodes'} with the same versions")


def versions() -> dict[str, str]:
    """Return the versions of what matters in this process."""
    found = {package: version_of(package) for package in _PACKAGES}
    return {"python": platform.python_version()} | {name: given for name, given in found.items() if given}


def version_of(package: str) -> str:
    """Return the version of a distribution, "" when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
