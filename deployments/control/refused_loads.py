"""What a load that was refused leaves in the state that is wanted: the reason, for the index."""

from dataclasses import replace

from deployments.control.desired_state import DesiredState
from deployments.control.gone_versions import latest_gone, with_not_read
from protocol.short_error import short_text
from repository_loader.snapshot import RepositoryModel


def refused(desired: DesiredState, name: str, reason: str) -> DesiredState:
    """Note why a model that does not run could not be loaded."""
    return replace(desired, gone=latest_gone({**desired.gone, name: {1: short_text(reason)}}))


def serving_on(desired: DesiredState, found: RepositoryModel) -> DesiredState:
    """Note which version of a model could not be read; what runs of the model stays as it is."""
    gone = with_not_read(desired.gone, found, desired.snapshot.models[found.name])
    return replace(desired, gone=latest_gone(gone))
