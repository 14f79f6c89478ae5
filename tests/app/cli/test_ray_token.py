import os
import pwd
from pathlib import Path

import pytest

from app.cli.ray_token import choose_token, current_token


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has set nothing of Ray's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        # set and then removed, so that monkeypatch also takes away what the test sets
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


def test_token_lies_in_a_folder_of_ours_that_only_its_user_reads(home: Path) -> None:
    choose_token()
    path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert current_token() == path.read_text() and len(current_token()) == 64
    assert sorted(each.name for each in home.rglob("*")) == [".eagleray", "ray_auth_token"]


def test_token_stays_the_same_from_run_to_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_token()
    first = current_token()
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    choose_token()
    assert current_token() == first


def test_servers_of_one_process_number_that_start_at_once_have_one_token(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers that share the home folder."""
    link = os.link

    def behind_another(*paths: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        monkeypatch.delenv("RAY_AUTH_MODE")
        choose_token()
        link(*paths)

    monkeypatch.setattr(os, "link", behind_another)
    choose_token()
    assert current_token() == Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text() != ""
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert sorted(each.name for each in home.rglob("*")) == [".eagleray", "ray_auth_token"]


def test_user_without_a_home_folder_has_a_token_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    choose_token()
    assert len(current_token()) == 64 and "RAY_AUTH_TOKEN_PATH" not in os.environ


@pytest.mark.parametrize(
    ("name", "value", "token"),
    [("RAY_AUTH_MODE", "disabled", ""), ("RAY_AUTH_TOKEN", "mine", "mine"), ("RAY_AUTH_TOKEN_PATH", "/no/file", "")],
)
def test_choice_of_the_user_stands(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, token: str
) -> None:
    monkeypatch.setenv(name, value)
    choose_token()
    assert current_token() == token
    assert not list(home.iterdir())


def test_token_of_the_users_own_clusters_is_used_where_there_is_one(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("theirs\n")
    choose_token()
    assert current_token() == "theirs"
    assert not (home / ".eagleray").exists()


@pytest.mark.parametrize(
    "folder", ["/proc/nobody", pytest.param(f"/tmp/{'x' * 256}", id="one that cannot be looked into")]
)
def test_without_a_home_the_token_lives_in_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("HOME", folder)
    choose_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert current_token() == os.environ["RAY_AUTH_TOKEN"]


@pytest.mark.parametrize("folder", [".eagleray/ray_auth_token", ".ray/auth_token"])
def test_a_token_that_cannot_be_read_is_not_used(home: Path, folder: str) -> None:
    (home / folder).mkdir(parents=True)
    choose_token()
    assert len(current_token()) == 64


def test_an_empty_token_is_not_used(home: Path) -> None:
    (home / ".eagleray").mkdir()
    (home / ".eagleray" / "ray_auth_token").touch()
    choose_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert current_token() == os.environ["RAY_AUTH_TOKEN"]
