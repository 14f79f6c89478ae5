"""Replicas of other code are replaced, and what a controller of other code has stored is not taken for one's own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.control import code_version, group_deployment, state_store
from deployments.control.first_state import read_desired_state
from deployments.control.state_store import StateStore
from tests.deployments.control.test_repository_watch import write
from tests.deployments.control.test_state_store import FACTS, Table, options_of

Versions = Callable[[dict[str, str]], str]


@pytest.fixture
def version_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Versions]:
    def version_of(files: dict[str, str]) -> str:
        home = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, content in files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(content)
        monkeypatch.setattr(code_version, "_HOME", home)
        code_version.code_version.cache_clear()
        return code_version.code_version()

    yield version_of
    code_version.code_version.cache_clear()


def test_other_code_of_what_replicas_run_is_another_version(version_of: Versions) -> None:
    code = {"deployments/lane/frames.py": "VERSION = 7", "app/main.py": "1", "protocol/infer.py": ""}
    first = version_of(code)
    assert version_of(code | {"app/main.py": "2", "deployments/notes.txt": "3"}) == first
    assert version_of(code | {"deployments/lane/frames.py": "VERSION = 8"}) != first
    assert version_of({"deployments/frames.py": "VERSION = 7", "app/main.py": "1", "protocol/infer.py": ""}) != first


def test_replicas_of_other_code_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path, "a")
    options = options_of(tmp_path)
    (plan,) = read_desired_state(options, FACTS).plan.deployments

    def version() -> str:
        named: Any = {"name": plan.name, "num_replicas": 1}
        application: Any = group_deployment.group_application([named], [plan], options, lambda app, name: None)
        return str(application._bound_deployment.version)

    before = version()
    assert version() == before
    monkeypatch.setattr(group_deployment, "code_version", lambda: "0.1.0 another")
    assert version() != before


def test_a_controller_of_other_code_does_not_go_on_with_what_was_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path, "a")
    options, table = options_of(tmp_path), Table()
    StateStore(table, "eagleray", options).save(desired := read_desired_state(options, FACTS))
    assert StateStore(table, "eagleray", options).load() == desired
    monkeypatch.setattr(state_store, "code_version", lambda: "0.1.0 another")
    assert StateStore(table, "eagleray", options).load() is None
