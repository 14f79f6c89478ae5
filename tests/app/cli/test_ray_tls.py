from pathlib import Path

import pytest

from app.cli.local_ray import LocalRay, RayOptions, StartFailed
from app.cli.ray_tls import ray_tls_fault
from tests.certificates import Authority

_NAMES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A cluster's certificates, as a user sets them."""
    root = Authority(tmp_path)
    pair = root.issue("node")
    files = dict(zip(_NAMES, map(str, (pair.certificate, pair.key, root.certificate)), strict=True))
    for name, value in {"RAY_USE_TLS": "1", **files}.items():
        monkeypatch.setenv(name, value)
    return files


def test_certificates_that_fit_are_no_fault(files: dict[str, str]) -> None:
    assert ray_tls_fault() == ""


@pytest.mark.parametrize("value", ["0", "false", ""])
def test_without_tls_nobody_looks_at_them(value: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", value)
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", "/nowhere")
    assert ray_tls_fault() == ""


def test_variables_that_are_missing_are_named_before_ray_is_started(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TLS_SERVER_KEY")
    monkeypatch.setenv("RAY_TLS_CA_CERT", "")
    with pytest.raises(StartFailed, match="needs RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT too"):
        LocalRay(RayOptions()).start()


@pytest.mark.parametrize("name", _NAMES)
def test_a_file_that_is_not_there_is_named(name: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/nowhere/file.pem")
    fault = ray_tls_fault()
    assert fault.startswith("RAY_USE_TLS is set, but its certificates cannot be used") and "/nowhere/file.pem" in fault


def test_a_key_of_another_certificate_is_refused(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = str(Authority(tmp_path, "other").issue("stranger").key)
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", other)
    assert f"{other} are not a certificate and its unencrypted key" in ray_tls_fault()


def test_a_certificate_of_another_root_is_refused(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TLS_CA_CERT", str(Authority(tmp_path, "other").certificate))
    assert "certificate verify failed" in ray_tls_fault()


def test_a_certificate_for_another_address_is_refused(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.ray_tls._ADDRESS", "10.0.0.1")
    assert f"{files['RAY_TLS_SERVER_CERT']} is not for 10.0.0.1 (subjectAltName)" in ray_tls_fault()
