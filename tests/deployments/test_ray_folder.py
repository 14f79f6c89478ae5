"""Where Ray keeps its sessions is where Ray itself says."""

import pytest
from ray._common.utils import get_default_ray_temp_dir

from deployments.ray_folder import ray_folder


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"TMPDIR": "/nonesuch"},
        {"TMP": "/var", "TEMP": "/var"},
        {"RAY_TMPDIR": "/scratch", "TMPDIR": "/var"},
    ],
    ids=["none", "missing", "of others", "Ray's own"],
)
def test_the_folder_is_rays(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_TMPDIR", "TMPDIR", "TMP", "TEMP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(ray_folder()) == get_default_ray_temp_dir()
