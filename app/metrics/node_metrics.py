"""Triton's metrics of the node: processors, memory and GPUs."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.core.counts import CPU, GPU, CpuState, GpuState, RowsByKind

_CPU: Final[tuple[tuple[str, str, Callable[[CpuState], float]], ...]] = (
    ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", lambda cpu: cpu.utilization_ppm / 1e6),
    ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", lambda cpu: cpu.total_bytes),
    ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", lambda cpu: cpu.used_bytes),
)
_GPU: Final[tuple[tuple[str, str, str, Callable[[GpuState], float]], ...]] = (
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)", lambda gpu: gpu.utilization_ppm / 1e6),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", lambda gpu: gpu.total_bytes),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", lambda gpu: gpu.used_bytes),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", lambda gpu: gpu.power_mw / 1e3),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", lambda gpu: gpu.power_limit_mw / 1e3),
    (
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the driver was loaded",
        lambda gpu: gpu.energy_mj / 1e3,
    ),
)


_PINNED_POOL: Final = (
    ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes"),
    ("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes"),
)


class NodeMetrics(Collector):
    """Collects what was noted last of the node; a value that NVML does not tell is left out.

    There is no pool of pinned memory: it has no bytes.
    """

    def __init__(self, rows: RowsByKind, *, cpu: bool, gpu: bool, aliases: bool = False) -> None:
        self._cpus = [row for _, row in rows.get(CPU, ())]
        self._gpus = [(label.name, row) for label, row in rows.get(GPU, ())]
        self._shown = cpu, gpu, aliases

    def collect(self) -> Iterator[Metric]:
        """Return the families that are shown."""
        cpu, gpu, aliases = self._shown
        for name, text, value in _CPU if cpu else ():
            family = GaugeMetricFamily(name, text)
            for state in self._cpus:
                family.add_metric((), value(state))
            yield family
        for name, text in _PINNED_POOL:
            yield GaugeMetricFamily(name, text, 0)
        for place, (name, kind, text, of_gpu) in enumerate(_GPU if gpu else ()):
            yield self._of_gpus(Metric(name, text, kind), place, of_gpu)
        if aliases:
            name, kind, _, of_gpu = _GPU[0]
            yield self._of_gpus(Metric("triton_gpu_utilization", f"{name} by another name", kind), 0, of_gpu)

    def _of_gpus(self, family: Metric, place: int, value: Callable[[GpuState], float]) -> Metric:
        for uuid, state in self._gpus:
            if state.known >> place & 1:
                family.add_sample(family.name, {"gpu_uuid": uuid}, value(state))
        return family
