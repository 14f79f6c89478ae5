"""The Ray under `eagleray serve`: started here, or one that runs and is joined."""

import logging
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.cli.cluster_address import require_listener
from app.cli.dashboard_login import DashboardLogin
from app.cli.ray_tls import ray_tls_fault
from app.cli.ray_token import current_token
from app.other_eagleray import other_eagleray
from deployments.available_cores import available_cores
from deployments.free_memory import free_memory_bytes
from deployments.ray_folder import ray_folder

_RAY_START_S = 30
"""How long Ray waits for its own processes (`raylet_start_wait_time_s` in `ray._private.node`)."""
_LOOK_S = 0.25
_LEAST_STORE_BYTES = 75 << 20
"""Ray takes no smaller object store."""
_ROOMY_BYTES = 11 * 10**9
"""Of free shared memory: Ray makes its object store no larger than 95 % of it where it is more than 10 GB."""
_USED_MEMORY = re.compile(r"[\d.]+\wB used / [\d.]+\wB limit")


class StartFailed(Exception):
    """The server did not come up, or its Ray has ended; the message says why, and where the logs are."""


@dataclass(frozen=True, slots=True)
class RayOptions:
    """How Ray is started, or found."""

    address: str = ""
    num_cpus: int = 0
    num_gpus: int | None = None
    dashboard: bool = True
    dashboard_port: int = 0


class LocalRay:
    """The cluster, from the driver's side."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._login: DashboardLogin | None = None
        self.dashboard_url = ""
        self.warnings: list[str] = []
        self.logs = ray_folder() / "session_latest" / "logs"

    def start(self) -> None:
        """Start or join.

        Raises:
            StartFailed: there is no cluster, it did not come up, this machine does not let it start, or its workers
                would run another Eagleray.
        """
        if other := other_eagleray():
            raise StartFailed(other)
        if not self._options.address:
            self.warnings += _require_machine()
        import ray

        from app.cli.ray_internals import as_served, sigterm_kept
        from app.doctor.finding import OK
        from app.doctor.machine import temporary_files

        sys.excepthook = sys.__excepthook__  # Ray's tells the GCS first, and waits for a minute where that has ended
        options = self._options
        if not options.address and temporary_files().level != OK:  # Ray would wait a minute for one that cannot start
            options = replace(options, dashboard=False)
        # It logs pages on a dashboard that does not start.
        logging.getLogger("ray._private.services").setLevel(logging.CRITICAL)
        try:
            require_listener(options.address)
            with sigterm_kept(), as_served(dashboard=options.dashboard):
                context = ray.init(log_to_driver=False, logging_level=logging.ERROR, **cluster(options))
        except Exception as error:  # Ray raises whatever its parts raise, plain Exception included
            raise self.failed(explain(error, options.address)) from error
        if not options.address:
            _start_first_worker()
        self.logs = Path(context.address_info["session_dir"]) / "logs"
        if options.address:
            self.dashboard_url = _page(context.dashboard_url or "")

    def failed(self, reason: str) -> StartFailed:
        """Return the error of a start that failed, with the places of the logs, if Ray has come as far as those."""
        if not self.logs.exists():
            return StartFailed(reason)
        return StartFailed(f"{reason}\n  logs: {self.logs} (those of models and ingress in {self.logs / 'serve'})")

    def require_alive(self) -> None:
        """See that all of it runs that was started here.

        Raises:
            StartFailed: something has ended without which nothing is replaced that ends.
        """
        if dead := self._dead_process():
            raise self.failed(f"Ray's {dead} has ended, without which Ray replaces no process that ends")

    def has_ended(self) -> bool:
        """Return whether something has ended of what was started here, without which nothing is replaced that ends."""
        return bool(self._dead_process())

    def _dead_process(self) -> str:
        from app.cli.ray_internals import dead_process_of_ray

        return dead_process_of_ray()

    def stop(self) -> None:
        """Leave the cluster, which ends if it was started here."""
        import ray

        from app.cli.ray_internals import prepare_end, sigterm_kept

        if self._login is not None:
            self._login.close()
        prepare_end()
        with sigterm_kept():
            ray.shutdown()

    def open_dashboard(self, given_up: Callable[[], bool]) -> str:
        """Wait until the dashboard of a cluster that was started here has started too; return a warning if it has not.

        Its URL, for a Ray with a token, hands the token over.
        """
        from app.cli.ray_internals import dashboard_start

        starting = dashboard_start()
        if starting is None:
            return ""
        while not starting.wait(_LOOK_S):
            if given_up():
                return ""
        if not starting.address:
            return f"Ray's dashboard has not started; models are served without it. See {self.logs}/dashboard.log"
        if token := current_token():
            self._login = DashboardLogin(starting.address, token)
        self.dashboard_url = self._login.url if self._login else _page(starting.address)
        return ""


def _page(dashboard: str) -> str:
    return f"http://{dashboard}/#/serve" if dashboard else ""


def _start_first_worker() -> None:
    """Have Ray start a worker, for what is deployed next, and with it the fork server of all later ones.

    Ray starts a second one for this task, which ends with it: no actor would take it.
    """
    import ray

    ray.remote(num_cpus=0, max_calls=1)(lambda: None).remote()


def _require_machine() -> list[str]:
    """See that this machine, and its environment, let Ray start; return what may not be enough for all replicas.

    Ray says so late, in many words or in none: a replica whose process finds no thread to start just stays LOADING.
    """
    from app.doctor.finding import ERROR, OK
    from app.doctor.machine import loopback, open_files, ray_room, shared_memory, temporary_files, threads

    if sys.flags.optimize > 1:
        raise StartFailed("PYTHONOPTIMIZE=2 leaves out docstrings, without which Ray does not start; set it to 1 or 0")
    if "error" in sys.warnoptions:
        raise StartFailed("PYTHONWARNINGS=error ends Ray's processes at their first warning; leave it out")
    if fault := ray_tls_fault():
        raise StartFailed(fault)
    for found in (loopback(), shared_memory(), temporary_files(), open_files()):
        if found.level == ERROR:
            raise StartFailed(f"{found.check}: {found.text}")
    return [f"{found.check}: {found.text}" for found in (temporary_files(), ray_room(), threads()) if found.level != OK]


def cluster(options: RayOptions) -> dict[str, Any]:
    """Return what tells `ray.init` which cluster to join, or to start."""
    if options.address:
        return {"address": options.address}
    return {
        "address": "local",
        "num_cpus": options.num_cpus or available_cores(),
        "num_gpus": options.num_gpus,
        # None starts it too, and does not end the cluster where it is late.
        "include_dashboard": None if options.dashboard else False,
        "dashboard_host": "127.0.0.1",
        # None lets Ray take the next free port when 8265 is taken.
        "dashboard_port": options.dashboard_port or None,
        "object_store_memory": object_store_bytes(),
    }


def object_store_bytes(folder: str = "/dev/shm") -> int | None:
    """Return how large Ray's object store is to be for its place in shared memory, None for what Ray chooses.

    It holds what is too large for a message: files of a load, tensors of deployment handles. Ray makes it a third of
    the machine's memory, and puts it into its own folder where `/dev/shm` has no room for that, as in most containers:
    there a full disk would end Ray. A container's `/dev/shm` may also be larger than its memory.
    """
    free = shutil.disk_usage(folder).free
    if not 2 * _LEAST_STORE_BYTES <= free < _ROOMY_BYTES:
        return None
    return min(free // 2, max(_LEAST_STORE_BYTES, free_memory_bytes() * 3 // 10))


def last_words(error: Exception) -> str:
    """Return one sentence on an error that has come from Ray, or by it, while models loaded."""
    from ray.exceptions import OutOfMemoryError

    if isinstance(error, OutOfMemoryError):  # its own last words are on how to configure Ray
        used = _USED_MEMORY.search(str(error))
        text = f" ({used[0]})" if used else ""
        return f"memory ran short{text}, and Ray ended processes of this server; end other programs, or give it more"
    lines = str(error).strip().splitlines() or ["no reason given"]
    return f"{type(error).__name__}: {lines[-1].strip()}"


def explain(error: Exception, address: str) -> str:
    """Return one sentence on why Ray did not start, or could not be joined."""
    text = " ".join(str(error).split())
    if address:
        return f"no Ray cluster could be joined at {address}: {text}"
    if "timed out" in text or isinstance(error, TimeoutError):
        return (
            f"Ray did not start within {_RAY_START_S} s: this machine is too busy, or short of memory, or lets few "
            "threads start; try again when it is quieter, or ask `eagleray doctor`"
        )
    folder = ray_folder()
    if "AF_UNIX path length" in text:
        text = f"the path of its folder, {folder}, is too long for a Unix socket; set RAY_TMPDIR to a shorter one"
    if isinstance(error, OSError) and str(error.filename or "").startswith(str(folder.parent)):
        text = f"its folder, {folder}, cannot be written: {error.strerror}; set RAY_TMPDIR to one that can"
    if isinstance(error, UnicodeError) and not str(folder).isascii():
        text = f"the path of its folder, {folder}, must be ASCII; set RAY_TMPDIR to such a one"
    return f"Ray did not start: {text or type(error).__name__}"
