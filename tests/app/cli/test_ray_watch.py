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
