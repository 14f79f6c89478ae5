import os

import pytest

from app.cli.local_ray import RayOptions, cluster, explain


@pytest.mark.parametrize(
    ("error", "address", "text"),
    [
        (
            Exception("The current node timed out during startup. This could happen because\nof much."),
            "",
            "Ray did not start within 30 s: this machine is too busy, or short of memory, or lets few threads start; "
            "try again when it is quieter, or ask `eagleray doctor`",
        ),
        (ValueError("two\n  lines"), "", "Ray did not start: two lines"),
        (OSError(), "", "Ray did not start: OSError"),
        (ConnectionError("nobody"), "10.0.0.1:6379", "no Ray cluster could be joined at 10.0.0.1:6379: nobody"),
    ],
)
def test_failure_is_one_sentence(error: Exception, address: str, text: str) -> None:
    assert explain(error, address) == text


def test_ray_has_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert cluster(RayOptions())["num_cpus"] == 1
    assert cluster(RayOptions(num_cpus=8))["num_cpus"] == 8
