"""What the packed models ask for together, for the replicas that they share."""

from dataclasses import dataclass

from repository_loader.overrides import Overrides


@dataclass(frozen=True, slots=True)
class PackedAsks:
    """The most replicas that any of them asks for, and of each replica CPUs and bytes of memory for all of them."""

    replica_count: int = 1
    num_cpus: float = 0.0
    memory_bytes: int = 0

    def beside(self, overrides: Overrides) -> "PackedAsks":
        """Return what they ask for with one model more."""
        return PackedAsks(
            max(self.replica_count, overrides.replicas or 1),
            self.num_cpus + (overrides.num_cpus or 0.0),
            self.memory_bytes + (overrides.memory_bytes or 0),
        )

    def needs(self, least_cpus: float) -> tuple[float, int]:
        """Return the CPUs and the bytes that all replicas reserve, of which each has `least_cpus` in any case."""
        return self.cpus(least_cpus) * self.replica_count, self.memory_bytes * self.replica_count

    def cpus(self, least_cpus: float) -> float:
        """Return the CPUs that one replica reserves."""
        return max(least_cpus, round(self.num_cpus, 4))
