"""An ingress says when Ray runs its workers behind all other programs."""

import os
import subprocess
import sys

import pytest

CODE = "import logging; logging.basicConfig(); from app.ingress.niceness import warn_of_niceness; warn_of_niceness()"


@pytest.mark.parametrize(("niceness", "said"), [(15, ["niceness 15,", "RAY_worker_niceness=0"]), (0, [])])
def test_how_to_start_ray_is_said_where_workers_come_last(niceness: int, said: list[str]) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if own > niceness:
        pytest.skip("the tests run at a niceness of their own")
    code = f"import os; os.nice({niceness - own})\n{CODE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(each in done.stderr for each in said)
    assert bool(done.stderr) == bool(said), done.stderr
