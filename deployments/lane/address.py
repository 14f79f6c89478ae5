"""Where a replica's lane listens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """A Unix socket on the replica's own node and, when it accepts other nodes, TCP (port 0: it does not).

    `gpus` are those of its node that Ray has given it, as Ray and CUDA name them: by number or UUID.
    """

    replica_id: str
    node_id: str
    unix_path: str
    tcp_host: str
    tcp_port: int
    secret: str
    gpus: tuple[str, ...] = ()
