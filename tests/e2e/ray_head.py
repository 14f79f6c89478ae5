"""`ray start` as a user types it, on ports and in a folder that no other Ray uses."""

from pathlib import Path

from tests.serving import EAGLERAY, free_port

BIN = Path(EAGLERAY).parent


def command(
    folder: Path, port: int, dashboard_port: int = 0, num_cpus: int = 4, address: str = "127.0.0.1"
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
    return [str(BIN / "ray"), "start", "--head", "--block", "--disable-usage-stats", *given]


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
    return [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", *given]
