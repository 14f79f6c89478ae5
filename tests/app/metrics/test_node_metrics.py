"""The metrics of the node, as any registry of prometheus-client's takes them."""

from prometheus_client import CollectorRegistry, generate_latest

from app.metrics.exposition import Exposition
from app.metrics.node_metrics import NodeMetrics
from deployments.core.counts import CPU, GPU, CpuState, GpuState, Label, RowsByKind, Totals
from tests.app.metrics.scraped import families


def rows_of_a_node() -> RowsByKind:
    totals = Totals()
    cpu, gpu = totals.row(Label(CPU, "", 0)), totals.row(Label(GPU, "GPU-1", 0))
    assert isinstance(cpu, CpuState) and isinstance(gpu, GpuState)
    cpu.utilization_ppm, cpu.total_bytes, cpu.used_bytes = 250_000, 1 << 30, 1 << 29
    gpu.utilization_ppm, gpu.total_bytes, gpu.energy_mj, gpu.known = 500_000, 1 << 34, 7500, 0b100011
    return totals.by_kind(lambda: None)


def test_a_registry_collects_what_a_scrape_shows() -> None:
    metrics = NodeMetrics(rows_of_a_node(), cpu=True, gpu=True, aliases=True)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    out = Exposition(lambda: None)
    out.collect(metrics)
    ours, theirs = families(out.text().decode()), families(generate_latest(registry).decode())
    assert {name: family.samples for name, family in ours.items() if family.type == "gauge"} == {
        name: family.samples for name, family in theirs.items() if family.type == "gauge"
    }
    shown = {name: [(each.labels, each.value) for each in family.samples] for name, family in ours.items()}
    gpu = {"gpu_uuid": "GPU-1"}
    assert shown["nv_cpu_utilization"] == [({}, 0.25)]
    assert shown["nv_energy_consumption"] == [(gpu, 7.5)]
    assert ours["nv_energy_consumption"].documentation.endswith("since the driver was loaded"), "as NVML counts"
    assert shown["triton_gpu_utilization"] == shown["nv_gpu_utilization"] == [(gpu, 0.5)]
    assert shown["nv_gpu_power_usage"] == [], "NVML does not tell it"
