"""What is said where repositories have no model, or not one that is to be loaded."""

from collections.abc import Iterable
from typing import Final

from deployments.control.desired_state import not_polled
from repository_loader.snapshot import Snapshot

NO_MODEL: Final = "there is no model: one is a folder of the repository with version folders in it, as m/1/model.onnx"


def absent(names: Iterable[str], snapshot: Snapshot) -> dict[str, str]:
    """Return, of the models that are to be loaded, what is said of those that no repository has."""
    return {name: not_polled(name) for name in names if name not in snapshot.models}
