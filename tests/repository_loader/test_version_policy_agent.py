from pathlib import Path

import pytest

from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.repository_loader.repositories import TENSORS, python_model, write

READ = "agent 'version_policy' is read as the field 'version_policy'"
NONE = "agent 'version_policy' is ignored: its parameters say none of 'latest', 'specific' and 'all'"
OWN = "agent 'version_policy' is ignored: the model has a version_policy"

CASES = {
    "latest": ({"latest": "2"}, "", [2, 3], READ),
    "all": ({"all": ""}, "", [1, 2, 3], READ),
    "specific": ({"specific": "1, 3"}, "", [1, 3], READ),
    "by name": ({"policy": "latest", "num_versions": "2"}, "", [2, 3], READ),
    "by name alone": ({"policy": "all"}, "", [1, 2, 3], READ),
    "versions by name": ({"policy": "specific", "versions": "2"}, "", [2], READ),
    "without sense": ({"newest": "yes"}, "", [3], NONE),
    "no number": ({"latest": "two"}, "", [3], NONE),
    "without parameters": ({}, "", [3], NONE),
    "beside the field": ({"all": "true"}, "version_policy { latest { num_versions: 2 } }", [2, 3], OWN),
}


@pytest.mark.parametrize(("parameters", "config", "versions", "warning"), CASES.values(), ids=CASES.keys())
def test_the_agent_says_what_the_field_would(
    tmp_path: Path, parameters: dict[str, str], config: str, versions: list[int], warning: str
) -> None:
    entries = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    agents = f'model_repository_agents [ {{ kind: "version_policy" {entries} }} ]'
    write(tmp_path, python_model("m", f"{TENSORS} {config} {agents}", (1, 2, 3)))
    model = load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"]
    assert [package.version for package in model.packages] == versions
    assert warning in [finding.message for finding in model.findings]
