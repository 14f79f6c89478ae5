import subprocess
import sys

SCRIPT = """
import contextlib, io, time
from app.cli.local_ray import StartFailed
from app.cli.ray_watch import RayWatch

class Ended:
    def require_alive(self):
        raise StartFailed("Ray has ended")

watch = RayWatch(Ended(), lambda: 0.0)
with contextlib.redirect_stderr(io.StringIO()):  # as while everything is stopped
    watch.start()
    time.sleep(60)
"""


def test_the_reason_is_printed_whatever_the_main_thread_prints_to_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "error: Ray has ended\n")


STANDS_STILL = """
import time
from app.cli.ray_watch import RayWatch

watch = RayWatch(None, lambda: 0.0)
watch.end_within(60).cancel()
watch.end_within(0.1)
watch.end()  # as before Ray is told to stop
time.sleep(60)
"""


def test_a_ray_that_does_not_stop_is_killed() -> None:
    done = subprocess.run([sys.executable, "-c", STANDS_STILL], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "error: Ray did not stop within 0.1 s, and was killed\n")
