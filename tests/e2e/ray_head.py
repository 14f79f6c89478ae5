"""`ray start` as a user types it, on ports and in a folder that no other Ray uses."""

import secrets
from collections.abc import Sequence
from pathlib import Path

from tests.serving import EAGLERAY, environment, free_port

BIN = Path(EAGLERAY).parent
RAYS, OURS = (str(BIN / "ray"),), (EAGLERAY, "ray")
"""Who starts a node."""
DEAD_SOON = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
"""Has Ray call a node dead that refuses its connections for 3 s, not 15."""
ENDS_SOON = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "1"}


def closed_environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a cluster that takes only who has its token, in `folder`; the rest is as README says.

    Workers at Ray's own niceness, 15, would come to a standstill beside whatever else computes here. A head that is told to
    end waits for what Serve runs on it, which nothing ends: half a minute, if it is not told otherwise.
    """
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    return environment(
        RAY_worker_niceness="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token), **ENDS_SOON, **more
    )


def command(
    folder: Path,
    port: int,
    dashboard_port: int = 0,
    num_cpus: int = 4,
    address: str = "127.0.0.1",
    ray: Sequence[str] = RAYS,
) -> list[str]:
    """Return the command; it runs in the foreground, so that exactly its processes can be stopped.

    With 0 for its port there is no dashboard.
    """
    flags = {
        "num-cpus": num_cpus,
        "node-ip-address": address,
        "port": port,
        "temp-dir": folder,
        "dashboard-host": "127.0.0.1",
        "dashboard-port": dashboard_port or free_port(),
        "include-dashboard": str(bool(dashboard_port)).lower(),
        "dashboard-agent-listen-port": free_port(),
        "metrics-export-port": free_port(),
        "ray-client-server-port": free_port(),
    }
    given = [f"--{name}={value}" for name, value in flags.items()]
    return [*ray, "start", "--head", "--block", "--disable-usage-stats", *given]


def node_command(address: str, num_gpus: int = 0, labels: str = "", own_address: str = "127.0.0.1") -> list[str]:
    """Return the command that starts a second node on this machine, with logical GPUs and labels (`a=b,c=d`)."""
    flags = {
        "address": address,
        "node-ip-address": own_address,
        "num-cpus": 1,
        "num-gpus": num_gpus,
        "dashboard-agent-listen-port": free_port(),
        "metrics-export-port": free_port(),
    }
    given = [f"--{name}={value}" for name, value in flags.items()]
    given += [f"--labels={labels}"] if labels else []
    return [*RAYS, "start", "--block", "--disable-usage-stats", *given]
