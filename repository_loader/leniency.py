"""Spellings that Triton refuses and people use; each is accepted with a warning.

Fields that `model_config.proto` does not have are lifted out of the text before protobuf parses it, leaving blanks so
that the positions of everything else stay right, and are put into the message afterwards.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelRateLimiter, ModelRepositoryAgents

from repository_loader import checksum_agent, version_policy_agent
from repository_loader.findings import Fault
from repository_loader.text_tree import Field, Message, Scalar

_CAPABILITY = re.compile(r"(?:sm_?|compute_?)?(\d+?)\.?(\d)", re.IGNORECASE)
_CUDA_GRAPHS = ("enable_cuda_graph", "trt_cuda_graph_enable")
KNOWN_AGENTS = frozenset({checksum_agent.AGENT_NAME, version_policy_agent.AGENT_NAME})


class AliasError(Exception):
    """An alias is used in a way that has no meaning."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message, offset)
        self.message = message
        self.offset = offset


@dataclass(slots=True)
class Aliases:
    """What was lifted out of a text: rate limiter resources (group -1 is every group) and repository agents."""

    resources: list[tuple[int, int, list[ModelRateLimiter.Resource]]] = field(default_factory=list)
    agents: list[tuple[int, ModelRepositoryAgents]] = field(default_factory=list)


def lift_aliases(text: str, tree: Message) -> tuple[str, Aliases]:
    """Return the text with aliases blanked out, and what they said.

    Raises:
        AliasError: an alias holds something else than it can mean.
    """
    aliases = Aliases()
    blanks: list[Field] = []
    for entry in tree.fields:
        if entry.name == "rate_limit_resources":
            aliases.resources.append((-1, entry.start, _resources(entry)))
            blanks.append(entry)
        elif entry.name == "model_repository_agents" and _is_agent_alias(entry):
            aliases.agents.append((entry.start, ModelRepositoryAgents(agents=list(_agents(entry)))))
            blanks.append(entry)
    groups = [value for entry in tree.fields if entry.name == "instance_group" for value in entry.values]
    for index, group in enumerate(groups):
        for entry in group.fields if isinstance(group, Message) else ():
            if entry.name == "rate_limit_resources":
                aliases.resources.append((index, entry.start, _resources(entry)))
                blanks.append(entry)
    pieces, done = [], 0
    for entry in sorted(blanks, key=lambda blank: blank.start):
        pieces += [text[done : entry.start], re.sub(r"[^\n]", " ", text[entry.start : entry.end])]
        done = entry.end
    return "".join((*pieces, text[done:])), aliases


def apply_aliases(config: ModelConfig, aliases: Aliases) -> Iterator[tuple[int, str]]:
    """Put what was lifted out into the message; yields a remark and its offset for each alias."""
    for group, offset, resources in aliases.resources:
        if group < 0 and not config.instance_group:
            config.instance_group.add()
        groups = config.instance_group if group < 0 else config.instance_group[group : group + 1]
        for target in groups:
            target.rate_limiter.resources.extend(resources)
        where = "the instance group" if group >= 0 else "every instance group"
        yield offset, f"'rate_limit_resources' is no field of Triton's; read as 'rate_limiter.resources' of {where}"
    for offset, agents in aliases.agents:
        config.model_repository_agents.MergeFrom(agents)
        yield offset, "'model_repository_agents' is read as { agents [ { name parameters } ] }"


def normalise_spellings(config: ModelConfig) -> Iterator[Fault]:
    """Correct values that parse but never match anything; yields a remark for each."""
    for key in sorted(config.cc_model_filenames):
        match = _CAPABILITY.fullmatch(key)
        right = f"{match[1]}.{match[2]}" if match else key
        if right != key and right not in config.cc_model_filenames:
            config.cc_model_filenames[right] = config.cc_model_filenames.pop(key)
            yield Fault(f'cc_model_filenames["{key}"]', f"compute capability '{key}' is read as '{right}'")
    if config.backend == "ensemble" and config.platform in ("", "ensemble"):
        config.backend = ""
        config.platform = "ensemble"
        yield Fault("backend", "backend 'ensemble' is read as platform 'ensemble'")
    if config.HasField("ensemble_scheduling") and not (config.backend or config.platform):
        config.platform = "ensemble"
        yield Fault("ensemble_scheduling", "'platform' is missing; read as platform 'ensemble'")
    accelerators = config.optimization.execution_accelerators
    for index, entry in enumerate(accelerators.gpu_execution_accelerator):
        for parameter in _CUDA_GRAPHS:
            if entry.parameters.get(parameter, "0").lower() in ("0", "false"):
                continue
            del entry.parameters[parameter]
            yield Fault(
                f"optimization.execution_accelerators.gpu_execution_accelerator[{index}]",
                f"'{parameter}' is ignored: CUDA graphs, which read each batch where the first was, are not used",
            )
    for name in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
        listed = getattr(accelerators, name)
        for index in [index for index, entry in enumerate(listed) if not entry.name][::-1]:
            del listed[index]
            yield Fault(f"optimization.execution_accelerators.{name}[{index}]", f"{name} without a 'name' is ignored")
    for index, agent in enumerate(config.model_repository_agents.agents):
        if agent.name not in KNOWN_AGENTS:
            yield Fault(
                f"model_repository_agents.agents[{index}]", f"unknown repository agent '{agent.name}' is ignored"
            )


def _resources(entry: Field) -> list[ModelRateLimiter.Resource]:
    return [_resource(value) for value in entry.values]


def _resource(value: Scalar | Message) -> ModelRateLimiter.Resource:
    if isinstance(value, Scalar):
        return ModelRateLimiter.Resource(name=value.value, count=1)
    resource = ModelRateLimiter.Resource(count=1)
    for entry in value.fields:
        given = value.scalar(entry.name)
        if entry.name == "name" and given is not None:
            resource.name = given.value
        elif entry.name == "global" and given is not None:
            setattr(resource, "global", given.value.lower() in ("true", "t", "1"))
        elif entry.name == "count" and given is not None and given.value.isdigit():
            resource.count = min(int(given.value), 2**32 - 1)
        else:
            raise AliasError(f"'{entry.name}' means nothing in 'rate_limit_resources'", entry.start)
    if not resource.name:
        raise AliasError("an entry of 'rate_limit_resources' must have a 'name'", value.start)
    return resource


def _is_agent_alias(entry: Field) -> bool:
    if entry.listed:
        return True
    for value in entry.values:
        for inner in value.fields if isinstance(value, Message) else ():
            if inner.name in ("kind", "name", "parameters"):
                return True
            for agent in inner.values:
                if isinstance(agent, Message) and any(part.name == "kind" for part in agent.fields):
                    return True
    return False


def _agents(entry: Field) -> Iterator[ModelRepositoryAgents.Agent]:
    for value in entry.values:
        if not isinstance(value, Message):
            raise AliasError("'model_repository_agents' must hold messages", value.start)
        nested = [inner for inner in value.fields if inner.name == "agents"]
        for inner in nested:
            yield from _agents(inner)
        if not nested:
            yield _agent(value)


def _agent(message: Message) -> ModelRepositoryAgents.Agent:
    agent = ModelRepositoryAgents.Agent()
    for entry in message.fields:
        if entry.name in ("name", "kind"):
            given = message.scalar(entry.name)
            agent.name = given.value if given else ""
        elif entry.name == "parameters":
            for value in entry.values:
                key, text = (value.scalar("key"), value.scalar("value")) if isinstance(value, Message) else (None, None)
                if key is None or text is None:
                    raise AliasError("parameters of a repository agent are entries of 'key' and 'value'", value.start)
                agent.parameters[key.value] = text.value
        else:
            raise AliasError(
                f'Message type "inference.ModelRepositoryAgents.Agent" has no field named "{entry.name}".', entry.start
            )
    return agent
