"""The repository agent `version_policy`, which repositories in the wild name: read as the field of that name.

Triton ships no such agent. Its parameters read `latest` -> a number, `specific` -> numbers with commas between them,
or `all`; or `policy` -> one of these words, with `num_versions` or `versions` beside it.
"""

import re
from collections.abc import Iterator, Mapping

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelVersionPolicy

from repository_loader.findings import Fault

AGENT_NAME = "version_policy"
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


def apply_version_policy(config: ModelConfig) -> Iterator[Fault]:
    """Have the configuration say what its agent does; yields what is left out, as warnings."""
    for index, agent in enumerate(config.model_repository_agents.agents):
        if agent.name != AGENT_NAME:
            continue
        field = f"model_repository_agents.agents[{index}]"
        policy = _read(agent.parameters)
        if policy is None:
            yield Fault(
                field, "agent 'version_policy' is ignored: its parameters say none of 'latest', 'specific' and 'all'"
            )
        elif config.HasField("version_policy"):
            yield Fault(field, "agent 'version_policy' is ignored: the model has a version_policy")
        else:
            config.version_policy.CopyFrom(policy)
            yield Fault(field, "agent 'version_policy' is read as the field 'version_policy'")


def _read(parameters: Mapping[str, str]) -> ModelVersionPolicy | None:
    given = {key.strip().lower(): value.strip().lower() for key, value in parameters.items()}
    named = given.get("policy", "")
    latest = given.get("latest", given.get("num_versions", "1") if named == "latest" else "")
    specific = given.get("specific", given.get("versions", "") if named == "specific" else "")
    if _NUMBER.fullmatch(latest):
        return ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=int(latest)))
    versions = [version for version in re.split(r"[\s,]+", specific) if version]
    if versions and all(_NUMBER.fullmatch(version) for version in versions):
        return ModelVersionPolicy(specific=ModelVersionPolicy.Specific(versions=map(int, versions)))
    if named == "all" or given.get("all", "false") != "false":
        return ModelVersionPolicy(all=ModelVersionPolicy.All())
    return None
