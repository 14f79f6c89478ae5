"""`python -m benchmarks.dashboards`: pictures of the dashboards, of what a real Prometheus answers to their queries.

It scrapes a server of the examples and of the tests' models under some load. What a machine without GPUs says of them
is made up.
"""

import math
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from app.metrics.model_labels import model_labels
from app.metrics.scrape import Shown, render
from benchmarks.dashboard_picture import draw
from deploy.grafana.dashboards import load as dashboards
from deployments.core.counts import GPU, Label, Totals
from deployments.core.statistics import ModelStatistics
from tests.prometheus import Prometheus, load, prometheus, samples
from tests.repeating import asking
from tests.repositories import write_broken_models, write_examples, write_small_models
from tests.serving import ROOT, Client, Server, tensor

RULES: Final = ROOT / "deploy/prometheus/rules/*.yml"
STEP_S: Final = 3.0
MODELS: Final = "simple|slow|cached|failing"
SCALES: Final = """
parameters { key: "eagleray.placement" value { string_value: "isolated" } }
parameters { key: "eagleray.autoscaling.max_replicas" value { string_value: "3" } }
parameters { key: "eagleray.autoscaling.target_ongoing_requests" value { string_value: "2" } }
parameters { key: "eagleray.autoscaling.downscale_delay_s" value { string_value: "20" } }
"""
DRAWN: Final = "Drawn by benchmarks/dashboards.py from the dashboard's own queries to a real Prometheus, not by Grafana"


def gpu_samples() -> bytes:
    """Return a page of two GPUs, whose values are made up and change with the time."""
    totals, now = Totals(), time.time()
    for number in range(2):
        busy = 0.8 + 0.15 * math.sin(now / 15 + 2 * number)
        memory = round((40 + 10 * number) * 2**30 + now % 60 * 2**24)
        power_mw = round(250_000 + 300_000 * busy)
        row = [0b111111, round(busy * 1e6), 80 * 2**30, memory, power_mw, 700_000, round(now % 1e6 * 480_000)]
        totals.row(Label(GPU, f"GPU-{number}", 0)).add(row)
    ModelStatistics("digits", 1, totals).counts.success_count = round(now % 1e6 * 40)
    return render(totals, model_labels({}), Shown(), {})


def picture(name: str, source: Prometheus, seconds: float, caption: str) -> str:
    """Draw one dashboard, for all nodes, and all models but on the one that is about a model."""
    end = time.time()

    def ask(query: str) -> list[dict[str, object]]:
        chosen = query.replace("$model", MODELS) if name == "model" else query
        plain = re.sub(r"\$(node|model|version|gpu)\b", ".*", chosen.replace("$__rate_interval", "15s"))
        return source.query_range(plain.replace("$ensemble", "digits_pipeline"), end, seconds, STEP_S)

    (dashboard,) = (each for each in dashboards() if each.name == name)
    return draw(dashboard, ask, caption)


@contextmanager
def wave(server: Server, seconds: float) -> Iterator[None]:
    """Have eight clients ask a slow model from the first third of the time to the second."""
    begins = time.monotonic() + seconds / 3

    def ask(client: Client) -> None:
        if begins < time.monotonic() < begins + seconds / 3:
            client.infer("slow", tensor("SECONDS", "FP32", [1], [0.05]))

    with asking(server, ask, count=8, pause_s=0.001):
        yield


@click.command(help=__doc__)
@click.option("--seconds", default=180, show_default=True, help="How long the pictures go back.")
@click.option("--out", default="docs/dashboards", show_default=True, type=click.Path(path_type=Path))
def main(seconds: int, out: Path) -> None:
    out.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        repository = write_small_models(write_examples(folder / "models"))
        broken = write_broken_models(folder / "broken")
        shutil.copytree(broken / "broken_initialize", repository / "broken_initialize")
        with (repository / "slow/config.pbtxt").open("a") as config:
            config.write(SCALES)
        flags = (
            "--num-cpus",
            "8",
            "--no-dashboard",
            "--cache-config",
            "local,size=1048576",
            "--metrics-interval-ms",
            "500",
        )
        server = Server(repository, folder / "log", *flags, "--metrics-config", "histogram_latencies=true")
        try:
            server.wait_ready()
            with (
                samples(gpu_samples) as address,
                prometheus(folder / "gpus", address, RULES) as gpus,
                prometheus(folder / "server", server.metrics_address, RULES) as source,
                load(server),
                wave(server, seconds),
            ):
                time.sleep(seconds + 20)
                for dashboard in ("overview", "model", "ensemble", "cluster"):
                    (out / f"{dashboard}.svg").write_text(picture(dashboard, source, seconds, f"{DRAWN}."))
                made_up = f"{DRAWN}. All values of this one are made up: there was no GPU."
                (out / "gpu.svg").write_text(picture("gpu", gpus, seconds, made_up))
            server.stop()
        finally:
            server.kill()


if __name__ == "__main__":
    main()
