"""How Ray runs under `eagleray serve`."""

import io

import pytest
from ray._private.worker import print_worker_logs

from app.cli.ray_variables import ray_variables


@pytest.mark.parametrize("terminal", [True, False])
def test_what_ray_prints_has_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    for name, value in ray_variables(terminal=terminal).items():
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    print_worker_logs({"lines": ["a worker died"], "pid": "raylet"}, out)  # type: ignore[dict-item]
    assert out.getvalue().endswith("a worker died\n")
    assert ("\x1b" in out.getvalue()) is terminal
