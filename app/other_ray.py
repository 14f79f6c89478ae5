"""A Ray other than the one that Eagleray is made for, of which it uses what is not public too."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

RAY: Final = "2.60"


def other_ray() -> str:
    """Return a sentence on the Ray that is installed, "" when it is the one that is needed; imports nothing of it."""
    needed = f"Eagleray needs Ray {RAY} (pip install 'ray[serve]=={RAY}.*')"
    try:
        found = version("ray")
    except PackageNotFoundError:
        return f"{needed}, and no Ray is installed"
    return "" if found.split(".")[:2] == RAY.split(".") else f"{needed}, and Ray {found} is installed"


def require_ray() -> None:
    """Refuse another Ray.

    Raises:
        RuntimeError: that is the one installed.
    """
    if other := other_ray():
        raise RuntimeError(other)
