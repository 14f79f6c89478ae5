"""The repository agent `checksum`: files must have the digests that the configuration names.

Parameters read `MD5:<path relative to the model's folder>` -> hexadecimal digest, as Triton's sample agent has them;
`SHA256:` is ours.
"""

import hashlib
import os
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.findings import Fault
from repository_loader.model_files import leaves_folder

AGENT_NAME = "checksum"
_ALGORITHMS = {"MD5": "md5", "SHA256": "sha256"}


def check_digests(config: ModelConfig, model_path: str) -> Iterator[Fault]:
    """Yield a fault for each file that is not what it should be; reads whole files."""
    for index, agent in enumerate(config.model_repository_agents.agents):
        if agent.name != AGENT_NAME:
            continue
        for key, expected in sorted(agent.parameters.items()):
            reason = _check(key, expected, model_path)
            if reason is not None:
                yield Fault(f"model_repository_agents.agents[{index}]", f"checksum of model '{config.name}': {reason}")


def _check(key: str, expected: str, model_path: str) -> str | None:
    algorithm, _, name = key.partition(":")
    if algorithm not in _ALGORITHMS or not name:
        return f"'{key}' is not MD5:<file> or SHA256:<file>"
    if leaves_folder(name):
        return f"file '{name}' is outside the model's folder"
    try:
        with open(os.path.join(model_path, name), "rb") as file:
            actual = hashlib.file_digest(file, _ALGORITHMS[algorithm]).hexdigest()
    except OSError as error:
        return f"file '{name}' cannot be read: {error.strerror}"
    return None if actual == expected.strip().lower() else f"file '{name}' has another {algorithm} digest"
