"""`eagleray serve`: a Ray cluster (started here, or one that runs), Eagleray on it, until a signal stops it."""

import contextlib
import io
import logging
import os
import shlex
import signal
import socket
import time
from collections import deque
from types import FrameType
from typing import Any
from urllib.parse import quote

from app.cli.console_pipe import ConsolePipe
from app.cli.local_ray import LocalRay, RayOptions, StartFailed, last_words
from app.cli.no_model import NO_MODEL
from app.cli.ports import require_free, require_unheard, reserve
from app.cli.progress import Progress, summary
from app.cli.ray_watch import RayWatch
from app.cli.standard_streams import print_at_once
from app.cli.started_processes import adopt_orphans, end_everything, kill_all
from app.cli.stop_request import StopRequest
from app.ingress.count import ingresses_per_node
from app.names import APPLICATION, INGRESS
from app.settings import Settings
from deployments.control.controller_options import CONTROLLER
from deployments.control.directory import Directory

_START_TIMEOUT_S = 600.0
_STEP_S = 0.25
_LOOK_S = 2.0
_EXIT_S = 5.0
_HUNG_S = 10.0
_STOP_S = 60.0
"""What is stopped after the drain has this time, half of which Serve takes where its controller does not answer."""
_RAY_ENDS_US_S = 50.0
"""By then all has to be over that waits for a GCS that has ended: a minute after that Ray ends whatever still runs."""
_INGRESS_TIMEOUT_S = 30.0

logger = logging.getLogger(__name__)


class LocalServer:
    """Runs in the foreground; `run` returns the exit code."""

    def __init__(self, settings: Settings, options: RayOptions) -> None:
        self._settings = settings
        self._options = options
        self._stop = StopRequest()
        self._signals = 0
        self._directory = Directory()
        self._ray = LocalRay(options)
        self._watch = RayWatch(self._ray, self._patience_s)
        self._console: ConsolePipe | None = None
        self._loading = True
        self._deployed = False
        self._reserved: list[socket.socket | None] = []

    def run(self) -> int:
        """Start, show what loads, serve until SIGINT or SIGTERM, drain and stop.

        Raises:
            PortTaken: before anything was started.
            StartFailed: after everything that was started has been stopped again; Ray may have ended while it served.
        """
        settings = self._settings
        if settings.allow_http and not settings.reuse_http_port:
            self._take(settings.http_address, settings.http_port, "HTTP")
        if settings.allow_http and settings.http_unix_socket:
            require_unheard(settings.http_unix_socket)
        if settings.allow_grpc and not settings.reuse_grpc_port:
            self._take(settings.grpc_address, settings.grpc_port, "gRPC")
        if settings.allow_metrics:
            self._take(settings.metrics_address or settings.http_address, settings.metrics_port, "metrics")
        if settings.allow_admin_api and settings.admin_port > 0:
            self._take(settings.admin_address, settings.admin_port, "the admin API")
        if self._options.dashboard and not self._options.address:
            require_free("127.0.0.1", self._options.dashboard_port, "Ray's dashboard")
        self._handle_signals()
        with Progress() as progress:
            directory, ports = self._directory, {}
            try:
                self._start_ray(progress)
                if not self._stop.made:
                    self._require_alone()
                    self._deploy()
                    directory = self._wait(progress)
                if not self._stop.made:
                    ports = self._handle(INGRESS).ports.remote().result(timeout_s=_INGRESS_TIMEOUT_S)
                    if warning := self._ray.open_dashboard(lambda: self._stop.made):
                        progress.say(f"warning: {warning}")
            except BaseException as error:
                self._shut_down()
                if isinstance(error, StartFailed) or not isinstance(error, Exception):
                    raise
                raise self._ray.failed(last_words(error)) from error
        if self._stop.made:
            self._shut_down()
            return 0
        self._loading = False
        self._announce(directory, ports)
        try:
            while not self._stop.wait(_LOOK_S):
                self._ray.require_alive()
        finally:
            print("\ndraining: requests under way are answered, then everything stops", flush=True)
            self._shut_down()
        return 0

    def _take(self, host: str, port: int, purpose: str) -> None:
        """Keep a port for the ingresses; in a cluster that is joined another user's could not share it."""
        if self._options.address:
            require_free(host, port, purpose)
        else:
            self._reserved.append(reserve(host, port, purpose))

    def _handle_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signal.alarm(0)  # see `sigterm_kept`: one that came as the start ended may have passed Ray's handler first
        self._signals += 1
        self._stop.make()
        if self._signals == 1 and self._loading:
            # Not through the console's objects, which the main thread may be holding.
            print_at_once(b"\nstopping: what was loading is given up, and everything stops\n")
        if self._signals == 3:  # a later one interrupts this, and must not end the process before all others are killed
            adopt_orphans()
            kill_all()
            os._exit(130)

    def _start_ray(self, progress: Progress) -> None:
        if self._options.address:
            progress.say(f"joining Ray at {self._options.address}")
        else:
            progress.say("starting Ray")
            try:
                self._console = ConsolePipe(progress.line)
            except OSError as error:
                progress.say(f"what models print is in Ray's logs only: {error}")
        self._ray.start()
        self._watch.start()
        for warning in self._ray.warnings:
            progress.say(f"warning: {warning}")

    def _require_alone(self) -> None:
        """See that the cluster joined has no Eagleray, which this one would take the place of, and end with itself."""
        from ray import serve

        if self._options.address and APPLICATION in serve.status().applications:
            raise StartFailed(
                f"Eagleray runs in this cluster already, as the Serve application '{APPLICATION}'; end it where it was "
                "started, or all of Serve by `serve shutdown`, first"
            )

    def _close_console(self) -> None:
        if self._console is not None:
            self._console.close()

    def _deploy(self) -> None:
        from ray import serve

        from app.builder import build  # takes a second, in which Ray starts the first worker

        self._deployed = True
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(proxy_location="Disabled")
        application = build(self._settings.model_dump(exclude_unset=True))
        serve.run_many(
            [serve.RunTarget(application, name=APPLICATION, route_prefix=None)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def _handle(self, deployment: str) -> Any:
        from deployments.serve_internals import handle_of

        return handle_of(deployment, APPLICATION)

    def _wait(self, progress: Progress) -> Directory:
        """Show the directory until every model has been tried and the ingresses can reach what loaded.

        Models have all the time that they take, while the controller says that it reads or loads them.
        """
        from ray.exceptions import RayActorError
        from ray.serve.exceptions import DeploymentUnavailableError

        from deployments.serve_internals import with_plain_calls

        deadline = time.monotonic() + _START_TIMEOUT_S
        controller = with_plain_calls(self._handle(CONTROLLER))
        directory = self._directory
        # The last answer is kept until the next one is there: a large one is an object of Ray's, which ends the process
        # where that has gone before Serve's callback for it has run.
        watches = deque([controller.watch.remote()], maxlen=2)
        while not self._stop.made:
            if time.monotonic() > deadline:
                reason = f": {directory.unread}" if directory.unread else ""
                raise self._ray.failed(f"not ready after {_START_TIMEOUT_S:.0f} s{reason}")
            self._ray.require_alive()
            self._check_deployments()
            try:
                news = watches[-1].result(timeout_s=_STEP_S)
            except TimeoutError:
                pass
            except (RayActorError, DeploymentUnavailableError):  # Serve replaces it
                directory.ask_for_all()
                time.sleep(_STEP_S)
                watches.append(controller.watch.remote(directory.epoch, directory.generation))
            else:
                if news is not None:
                    directory.take(news)
                    progress.show(directory)
                if directory.unread or (directory.known and not directory.settled):
                    deadline = time.monotonic() + _START_TIMEOUT_S
                watches.append(controller.watch.remote(directory.epoch, directory.generation))
            if directory.settled and self._ingresses_settled():
                break
        watches[-1].cancel()
        failed = [name for name, entry in directory.models.items() if _failed(entry)]
        if failed and self._settings.exit_on_error:
            raise self._ray.failed("failed to load all models: " + ", ".join(failed))
        return directory

    def _ingresses_settled(self) -> bool:
        """Whether the node's ingresses are there, and each of them can reach what loaded."""
        from ray.exceptions import RayActorError
        from ray.serve.exceptions import DeploymentUnavailableError

        try:
            settled = self._handle(INGRESS).broadcast("settled").results(timeout_s=_INGRESS_TIMEOUT_S)
        except (RayActorError, DeploymentUnavailableError, TimeoutError):
            return False
        return len(settled) >= ingresses_per_node(self._settings) and all(settled)

    def _check_deployments(self) -> None:
        from ray import serve

        overview = serve.status().applications.get(APPLICATION)
        if overview is None:
            return
        for name, deployment in overview.deployments.items():
            if deployment.status.value == "DEPLOY_FAILED":
                lines = [line for line in deployment.message.splitlines() if line.strip()]
                raise self._ray.failed(f"{name} did not start: {lines[-1] if lines else 'no reason given'}")

    def _announce(self, directory: Directory, ports: dict[str, int]) -> None:
        settings = self._settings
        print(f"\n{summary(directory)}")
        if not directory.models and settings.model_control_mode != "explicit":
            print(NO_MODEL)
        base, scheme = "", "https" if settings.http_use_ssl else "http"
        if "http" in ports:
            base = f"{scheme}://{for_url(settings.http_address)}:{ports['http']}"
            print(f"  HTTP       {base}")
            if settings.console:
                print(f"  console    {base}/")
        if "grpc" in ports:
            print(f"  gRPC       {for_url(settings.grpc_address)}:{ports['grpc']}")
        if "admin" in ports:
            print(f"  admin      {scheme}://{for_url(settings.admin_address)}:{ports['admin']}")
        if "metrics" in ports:
            address = for_url(settings.metrics_address or settings.http_address)
            print(f"  metrics    http://{address}:{ports['metrics']}/metrics")
        if self._ray.dashboard_url:
            print(f"  dashboard  {self._ray.dashboard_url}")
        if base:
            _suggest(base, directory, bool(settings.api_key or settings.api_key_file))
        print("\nCtrl-C drains and stops.", flush=True)

    def _shut_down(self) -> None:
        """Answer what is under way, stop Eagleray, then Ray if it was started here, and see that nothing is left."""
        adopt_orphans()
        own = not self._options.address
        limit = self._watch.end_within(self._drain_timeout_s() + _STOP_S) if own else None
        try:
            # Whose Ray has ended while models were loading has nothing under way, and calls of Ray's that may wait.
            if self._deployed and not (self._loading and self._ray.has_ended()):
                self._drain()
            # Ray prints what its own controllers say about each other's end.
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                self._stop_eagleray()
        finally:
            if limit is not None:
                limit.cancel()
            end_everything(_EXIT_S)
            self._watch.end()
            self._close_console()

    def _drain(self) -> None:
        try:
            drained = self._handle(INGRESS).broadcast("drain")
            drained.results(timeout_s=self._drain_timeout_s(), return_exceptions=True)
        except Exception as error:
            logger.debug("the ingresses could not be drained: %s", error)

    def _drain_timeout_s(self) -> float:
        return self._settings.drain_delay_s + self._settings.exit_timeout_secs + 5.0

    def _patience_s(self) -> float:
        """Return how long the main thread has when Ray has ended."""
        return min(_HUNG_S + (0.0 if self._loading else self._drain_timeout_s()), _RAY_ENDS_US_S)

    def _stop_eagleray(self) -> None:
        try:
            if self._ray.has_ended():  # Serve would wait for what cannot be, and its threads say so
                logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
                end_everything()
                return
            if self._deployed:
                self._delete_applications()
        finally:
            if not self._ray.has_ended():  # from here on its processes end because they are told to
                self._watch.end()
            self._ray.stop()

    def _delete_applications(self) -> None:
        from ray import serve

        from deployments.control.gpu_cards import release_cards
        from deployments.serve_internals import application_owners

        if not self._options.address:
            serve.shutdown()
            return
        for name, owner in application_owners().items():
            if APPLICATION in (name, owner):
                serve.delete(name)
        release_cards()


def for_url(address: str) -> str:
    """Return an address as it stands in a URL: one of IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def _suggest(base: str, directory: Directory, keys: bool) -> None:
    curl = 'curl -s -H "Authorization: Bearer $KEY"' if keys else "curl -s"
    print("\nTry:")
    print(f"  {curl} {base}/v2")
    print(f"  {curl} -X POST {base}/v2/repository/index")
    example = example_request(directory)
    if example is not None:
        path, body = example
        print(f"  {curl} {base}{path} -d {body}")
    if not keys:  # a browser that is pointed there sends none
        print(f"  {base}/v2/docs in a browser")


def _failed(entry: Any) -> bool:
    return bool(entry.reason) or any(version.failed for version in entry.versions.values())


def example_request(directory: Directory) -> tuple[str, str] | None:
    """Return the path of a model with small numeric inputs that serves, and zeros that it answers, for a shell.

    One whose replicas are being replaced serves: its requests wait for them.
    """
    import orjson

    from app.service.example_body import example_body

    for name, entry in sorted(directory.models.items()):
        if entry.config and entry.taken_versions():
            body = example_body(entry.config)
            if body is not None:
                return f"/v2/models/{quote(name, safe='')}/infer", shlex.quote(orjson.dumps(body).decode())
    return None
