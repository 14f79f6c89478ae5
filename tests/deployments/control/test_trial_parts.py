"""Of which versions the processes keep what ran before, while they are on trial."""

from pathlib import Path

import pytest

from deployments.control.model_table import ModelTable
from deployments.control.trial_parts import may_come_back
from deployments.replica.hosted_model import KEEPS_FORMER, packages_by_name
from tests.deployments.control.test_desired_state import ENSEMBLE, write
from tests.deployments.control.test_former_places import PLACED, Repository

REPLICAS = 'parameters { key: "eagleray.replicas" value { string_value: "%d" } }'


def with_ensemble(root: Path, placement: str) -> Repository:
    write(root, "step", PLACED % placement)
    (root / "pipe/1").mkdir(parents=True)
    (root / "pipe/config.pbtxt").write_text(ENSEMBLE)
    return Repository(root)


def change(root: Path, *names: str) -> None:
    for name in names:
        file = root / name / "config.pbtxt"
        file.write_text(f"{file.read_text()}\nversion_policy {{ latest {{ num_versions: 2 }} }}")


def test_models_that_change_together_may_come_back_until_they_are_on_trial_no_more(tmp_path: Path) -> None:
    repository = with_ensemble(tmp_path, "isolated")
    before = repository.read()
    assert not may_come_back(before)
    change(tmp_path, "step", "pipe")
    tried = repository.load(before, "pipe")
    revisions = {model.name: model.package.revision for model in before.plan.models}
    assert may_come_back(tried) == {(name, 1): revision for name, revision in revisions.items()}
    assert not may_come_back(repository.commit(tried)) and not may_come_back(repository.revert(tried))
    kept = {model.name: packages_by_name(tried.plan, may_come_back(tried)).told(model) for model in tried.plan.models}
    told = {model.name: packages_by_name(tried.plan).told(model) for model in tried.plan.models}
    assert all(kept[name] == {**told[name], KEEPS_FORMER: revisions[name]} for name in ("step", "pipe"))


def test_what_did_not_run_before_has_nothing_that_comes_back(tmp_path: Path) -> None:
    repository = with_ensemble(tmp_path, "isolated")
    before = repository.read()
    write(tmp_path, "other", "")
    change(tmp_path, "step")
    tried = repository.load(repository.load(before, "other"), "step")
    assert len(tried.trials) == 2 and not may_come_back(tried)


@pytest.mark.parametrize(("more", "expected"), [("", []), (REPLICAS % 2, [("m", 1)])])
def test_a_model_alone_may_come_back_where_it_has_several_replicas(
    tmp_path: Path, more: str, expected: list[tuple[str, int]]
) -> None:
    write(tmp_path, "m", (PLACED % "isolated") + more)
    repository = Repository(tmp_path)
    before = repository.read()
    change(tmp_path, "m")
    assert [*may_come_back(repository.load(before, "m"))] == expected


def test_ingresses_are_told_of_what_may_come_back_with_what_they_host(tmp_path: Path) -> None:
    repository = with_ensemble(tmp_path, "embedded")
    before = repository.read()
    change(tmp_path, "step")
    tried = repository.load(before, "step")
    assert may_come_back(tried).keys() == {("step", 1)}
    table = ModelTable()
    table.replace(before, {})
    for desired, keeps in ((tried, may_come_back(tried)["step", 1]), (repository.commit(tried), None)):
        table.replace(desired, {})
        assert table.tables()["embedded"]["step/1"].get(KEEPS_FORMER) == keeps
