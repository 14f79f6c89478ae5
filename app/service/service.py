"""What the server can do, once: HTTP, and every other protocol, only translate to and from this.

Errors carry Triton's texts (its §4.2 and §7.1 of the catalog of behaviours) and are raised as ServingErrors.
"""

from typing import Any
from urllib.parse import unquote_to_bytes

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.service.example_body import example_body
from app.service.log_settings import LogSettings
from app.service.model_control import ModelControl, NoModelControl
from app.service.trace_settings import TraceSettings
from deployments.control.directory import NO_REPLICA, READY, UNAVAILABLE, Directory, VersionEntry
from deployments.core.statistics import merge
from deployments.lane.fleet import Fleet
from deployments.lane.sink import Target
from deployments.replica.model_host import ModelHost
from protocol.errors import InvalidArgument, NotFound, Unavailable, Unsupported
from protocol.model_metadata import model_metadata, server_metadata

# What is offered so far, of the names that Triton lists.
EXTENSIONS = (
    "classification",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class Service:
    """One ingress's view of the cluster.

    `trace`, `log` and `control` are what clients may set and load; `regions` the shared memory that they registered.
    """

    def __init__(
        self,
        server_id: str,
        version: str,
        strict_readiness: bool,
        host: ModelHost,
        fleet: Fleet,
        *,
        allow_client_shm: bool = False,
        trace: TraceSettings | None = None,
        log: LogSettings | None = None,
        control: ModelControl | None = None,
    ) -> None:
        self._server_id = server_id
        self._version = version
        self._strict_readiness = strict_readiness
        self._host = host
        self._fleet = fleet
        self._allow_client_shm = allow_client_shm
        self._directory = Directory()
        self._configs: dict[str, ModelConfig] = {}
        self.regions = host.regions
        self.trace = trace or TraceSettings()
        self.log = log or LogSettings()
        self.control = control or NoModelControl()
        self.draining = False

    def set_directory(self, directory: Directory) -> None:
        """Take the controller's news."""
        self._directory = directory
        self._configs = {
            name: json_format.Parse(entry.config, ModelConfig(), ignore_unknown_fields=True)
            for name, entry in directory.models.items()
            if entry.config
        }

    # -- routing --------------------------------------------------------------------------------------------------

    def resolve(self, quoted_name: bytes, version: int) -> Target:
        """Return the target of an inference request by HTTP.

        Raises:
            NotFound: unknown model or version, or a model without versions.
            Unavailable: the version is known but not ready.
            Unsupported: the model is decoupled.
        """
        name = unquote_to_bytes(quoted_name).decode("utf-8", "replace")
        if self.decoupled(name):
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        return self.target(name, version)

    def resolve_generate(self, quoted_name: bytes, version: int) -> tuple[Target, list[dict[str, Any]]]:
        """Return the target of a generate request, and the model's inputs as its metadata lists them."""
        name = unquote_to_bytes(quoted_name).decode("utf-8", "replace")
        target = self.target(name, version)
        inputs: list[dict[str, Any]] = self.model_metadata(name, version)["inputs"]
        return target, inputs

    def target(self, name: str, version: int = -1) -> Target:
        """Return where to send a request for a model version (-1: the highest ready one); raises as `resolve`."""
        target = self._find(name, version)
        if target is None or not target.ready:
            raise self._why_not(name, version)
        return target

    def _find(self, name: str, version: int) -> Target | None:
        entry = self._directory.models.get(name)
        if entry is None:
            return None
        if version == -1:
            ready = [number for number, state in entry.versions.items() if self._version_ready(name, number, state)]
            if not ready:
                return None
            version = max(ready)
        return self._host.target(name, version) or self._fleet.target(name, version)

    def _version_ready(self, name: str, version: int, entry: VersionEntry) -> bool:
        # What a replica failed to load, or an ensemble whose step failed, may have a lane all the same.
        if entry.failed:
            return False
        target = self._host.target(name, version) or self._fleet.target(name, version)
        return target is not None and target.ready

    def _why_not(self, name: str, version: int) -> NotFound | Unavailable:
        entry = self._directory.models.get(name)
        if entry is None:
            return NotFound(f"Request for unknown model: '{name}' is not found")
        if version == -1:
            if all(state.failed for state in entry.versions.values()):
                return NotFound(f"Request for unknown model: '{name}' has no available versions")
            version = max(entry.versions)
        if version not in entry.versions:
            return NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        return Unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state")

    def decoupled(self, name: str) -> bool:
        """Whether a model answers a request with any number of responses; False for an unknown one."""
        config = self._configs.get(name)
        return config is not None and config.model_transaction_policy.decoupled

    # -- health ---------------------------------------------------------------------------------------------------

    def server_ready(self) -> bool:
        """Whether every model is ready (strict), else whether the repository has been read."""
        directory = self._directory
        if self.draining or not directory.settled:
            return False
        if not self._strict_readiness:
            return True
        return all(
            entry.versions and all(self._version_ready(name, number, state) for number, state in entry.versions.items())
            for name, entry in directory.models.items()
        )

    def models_settled(self) -> bool:
        """Whether every model has been tried, and every one that loaded can be reached from here."""
        return self._directory.settled and all(
            state.state != READY or self._version_ready(name, number, state)
            for name, entry in self._directory.models.items()
            for number, state in entry.versions.items()
        )

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model version is ready; raises NotFound for an unknown model or version."""
        try:
            self.target(name, version)
        except Unavailable:
            return False
        return True

    # -- metadata -------------------------------------------------------------------------------------------------

    def server_metadata(self) -> dict[str, Any]:
        """Return the server's metadata."""
        return server_metadata(self._server_id, self._version, EXTENSIONS)

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return a model's metadata with its ready versions, or with the one that is asked for."""
        self.target(name, version)
        versions = [version] if version != -1 else self._ready_versions(name)
        return model_metadata(self._configs[name], versions)

    def _ready_versions(self, name: str) -> list[int]:
        versions = self._directory.models[name].versions
        return sorted(number for number, state in versions.items() if self._version_ready(name, number, state))

    def model_config(self, name: str, version: int = -1) -> bytes:
        """Return a model's completed configuration as JSON."""
        self.target(name, version)
        return self._directory.models[name].config.encode()

    def example_requests(self) -> list[dict[str, Any]]:
        """Return, for each model with a ready version, its name and a small body that it answers (None: too large)."""
        rows: list[dict[str, Any]] = []
        for name, entry in sorted(self._directory.models.items()):
            if entry.config and self._ready_versions(name):
                rows.append({"model": name, "body": example_body(entry.config)})
        return rows

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Return the repository index: every model and version with its state and the reason for it."""
        rows: list[dict[str, str]] = []
        for name, entry in sorted(self._directory.models.items()):
            if not entry.versions and not ready_only:
                row = {"name": name}
                if entry.reason:
                    row |= {"version": "1", "state": UNAVAILABLE, "reason": entry.reason}
                rows.append(row)
            for number, version in sorted(entry.versions.items()):
                state, reason = version.state, version.reason
                if state == READY and not self._version_ready(name, number, version):
                    state, reason = UNAVAILABLE, NO_REPLICA
                if state == READY or not ready_only:
                    row = {"name": name, "version": str(number), "state": state}
                    rows.append(row | {"reason": reason} if reason else row)
        return rows

    # -- what clients may set -------------------------------------------------------------------------------------

    async def load_model(self, name: str, parameters: dict[str, Any]) -> None:
        """Load a model, as far as the control mode allows it."""
        await self.control.load(name, parameters)

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model, as far as the control mode allows it."""
        await self.control.unload(name, unload_dependents)

    def trace_settings(self, model: str = "") -> dict[str, Any]:
        """Return the trace settings of the server or, as far as they differ, of a model.

        Raises:
            NotFound: there is no such model.
            InvalidArgument: it is not ready (Triton's code for it).
        """
        self._check_traced(model)
        return self.trace.get(model)

    def update_trace_settings(self, changes: dict[str, Any], model: str = "") -> dict[str, Any]:
        """Change trace settings (None: back to the default) and return all; raises as `trace_settings`."""
        self._check_traced(model)
        self.trace.update(changes, model)
        return self.trace.get(model)

    def _check_traced(self, model: str) -> None:
        if model and not self.model_ready(model):
            raise InvalidArgument(f"Request for unknown model : {model}")

    def log_settings(self) -> dict[str, Any]:
        """Return the log settings of this process."""
        return self.log.get()

    def update_log_settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Change log settings and return all."""
        self.log.update(changes)
        return self.log.get()

    # -- shared memory --------------------------------------------------------------------------------------------

    def shm_status(self, region: str = "") -> list[dict[str, Any]]:
        """Return the registered regions of system shared memory, or one; raises NotFound for an unknown one."""
        return self.regions.status(region)

    def shm_register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a region, here and in the replicas of this node; raises as `Regions.register`."""
        self.check_client_shm()
        self.regions.register(name, key, offset, byte_size)
        self._fleet.set_regions(self.regions, self.regions.table())

    def shm_unregister(self, name: str = "") -> None:
        """Forget a region, or all of them."""
        self.check_client_shm()
        self.regions.unregister(name)
        self._fleet.set_regions(self.regions, self.regions.table())

    def check_client_shm(self) -> None:
        """Raise Unsupported unless the operator allows clients to register shared memory."""
        if not self._allow_client_shm:
            raise Unsupported(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )

    # -- statistics -----------------------------------------------------------------------------------------------

    async def snapshots(self) -> list[dict[str, Any]]:
        """Return the statistics of every ready model version, summed over its replicas."""
        by_version: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for snapshots in (self._host.snapshot(), *await self._fleet.snapshots()):
            for snapshot in snapshots:
                by_version.setdefault((snapshot["name"], snapshot["version"]), []).append(snapshot)
        return [merge(by_version[key]) for key in sorted(by_version) if self._is_served(*key)]

    def _is_served(self, name: str, version: str) -> bool:
        # An ensemble whose step failed is loaded all the same.
        entry = self._directory.models.get(name)
        state = entry.versions.get(int(version)) if entry is not None else None
        return state is not None and self._version_ready(name, int(version), state)

    async def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Return Triton's statistics of one model or all.

        Raises:
            InvalidArgument: the model or version is not there (Triton's code for it).
        """
        if name:
            entry = self._directory.models.get(name)
            if entry is None or not self._ready_versions(name):
                raise InvalidArgument(f"requested model '{name}' is not available")
            if version != -1 and version not in self._ready_versions(name):
                raise InvalidArgument(f"requested model version is not available for model '{name}'")
        rows = []
        for snapshot in await self.snapshots():
            if name and (snapshot["name"] != name or (version != -1 and snapshot["version"] != str(version))):
                continue
            rows.append({key: value for key, value in snapshot.items() if key != "metrics"})
        return rows
