"""The script by which the raylet of `eagleray serve` starts its two agents, which end with it from then on.

They look for themselves whether the raylet lives. Where it was killed with the server and the GCS, as when a signal
ends the server while Ray stops, they try for a minute to tell the GCS of it, and are left behind that long.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Become the agent whose command line follows that of this script."""
    if str(os.getppid()) == os.environ.get("RAY_RAYLET_PID"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])


if __name__ == "__main__":
    main()
