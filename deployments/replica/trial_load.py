"""Loads a model as a replica would, in a process of its own that is gone afterwards."""

from dataclasses import dataclass, replace

from deployments.core import side_process
from deployments.replica.hosted_model import HostedModel

TIMEOUT_S = 300.0
_PROCESS = "deployments.replica.trial_load_process"


@dataclass(frozen=True, slots=True)
class TrialLoad:
    """What came of it: `reason` is "" when the model loads, `output` the end of what the process printed."""

    reason: str
    output: str


def try_load(hosted: HostedModel, max_memory_bytes: int, timeout_s: float = TIMEOUT_S) -> TrialLoad:
    """Load one instance of a model, with its warm-up, and unload it; blocks."""
    package = hosted.package
    task = replace(hosted, specs=hosted.specs[:1]).to_dict()
    try:
        result = side_process.run(_PROCESS, task, timeout_s, max_memory_bytes)
    except side_process.SideProcessError as error:
        return TrialLoad(f"loading '{package.name}' version {package.version} {error}", error.output)
    return TrialLoad(str(result.value["error"]), result.output)
