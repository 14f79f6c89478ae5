"""What a scrape of many models costs the process that answers it."""

import asyncio
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.metrics.exposition import Exposition, Histograms
from app.metrics.model_labels import model_labels
from app.metrics.scrape import Scrape, Shown, render
from app.service.statistics import Statistics
from benchmarks.metrics import MOST_HELD_MS, MOST_SCRAPE_MS, stretches, write_models
from deployments.backends.backend import Batch
from deployments.control.directory import READY, UNAVAILABLE, UNLOADED, ModelEntry, VersionEntry
from deployments.core.counts import Totals
from deployments.core.metrics_options import MetricsOptions
from deployments.core.request_meter import RequestMeters, succeed
from deployments.core.statistics import ModelStatistics
from deployments.lane.wire import HTTP
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from protocol.infer import InferRequest, InferResponse
from tests.app.metrics.scraped import families


def test_a_scrape_of_300_models_is_quick_and_holds_no_loop(tmp_path: Path) -> None:
    rows = NodeCounters(NodeFolder("node", tmp_path))
    models = write_models(rows, 300)
    cpu_ms, stretches_ms, text = stretches(rows, models, 10)
    rows.close()
    assert len(families(text)["eagleray_request_duration_seconds"].samples) == 300 * 2 * 27
    assert min(stretches_ms) < MOST_HELD_MS
    assert min(cpu_ms) < MOST_SCRAPE_MS  # some 20 ms where nothing else runs


def test_no_garbage_is_collected_while_a_scrape_is_made(tmp_path: Path) -> None:
    rows, collected = NodeCounters(NodeFolder("node", tmp_path)), list[str]()
    known: Any = SimpleNamespace(directory=SimpleNamespace(models=write_models(rows, 300)))

    class Counters:
        async def of_node(self) -> Totals:
            return await asyncio.to_thread(rows.totals)

        of_cluster = of_node

    page = Scrape(Statistics(known, Counters()), known, Shown())

    def note(phase: str, _: dict[str, int]) -> None:
        collected.append(phase)

    async def scrape() -> None:
        gc.callbacks.append(note)
        try:
            await page.text()
        finally:
            gc.callbacks.remove(note)

    asyncio.run(scrape())
    rows.close()
    assert collected.count("start") <= 1, "one when it is done; there would be ten and more"
    assert gc.isenabled()


def test_many_who_scrape_at_once_cost_two_scrapes(tmp_path: Path) -> None:
    rows = NodeCounters(NodeFolder("node", tmp_path))
    known: Any = SimpleNamespace(directory=SimpleNamespace(models=write_models(rows, 1)))

    async def ask() -> None:
        made, go_on = list[int](), asyncio.Event()

        class Counters:
            async def of_node(self) -> Totals:
                made.append(1)
                await go_on.wait()
                if len(made) == 1:
                    raise OSError("the first one fails")
                return rows.totals()

            of_cluster = of_node

        page = Scrape(Statistics(known, Counters()), known, Shown())
        first = asyncio.create_task(page.text())
        while not made:
            await asyncio.sleep(0)
        others = [asyncio.create_task(page.text()) for _ in range(50)]
        await asyncio.sleep(0)
        others.pop().cancel()
        go_on.set()
        texts = await asyncio.gather(first, *others, return_exceptions=True)
        assert isinstance(texts[0], OSError)
        assert len({*texts[1:]}) == 1 and isinstance(texts[1], bytes)
        assert len(made) == 2
        assert isinstance(await page.text(), bytes)
        assert len(made) == 3

    asyncio.run(ask())
    rows.close()


def test_what_was_counted_since_the_last_scrape_is_in_the_next(tmp_path: Path) -> None:
    rows, later = NodeCounters(NodeFolder("node", tmp_path)), InferRequest({}, 1, lambda *_: None)
    models = write_models(rows, 3)
    shown = Shown(MetricsOptions(histograms=True))

    def scraped(before: Histograms) -> tuple[bytes, Histograms]:
        out = Exposition(lambda: None, before)
        return render(rows.totals(), model_labels(models), shown, models, out), out.histograms_written

    first, before = scraped({})
    assert scraped(before) == (first, before)
    meter = RequestMeters(rows).of("model_1", 1)
    succeed(meter.begin(HTTP), 0)
    batch = Batch([later], 2, "full")
    batch.results = [InferResponse({})]
    ModelStatistics("model_1", 1, rows).record_batch(batch)
    models["new"] = ModelEntry("{}", versions={1: VersionEntry(READY)})
    RequestMeters(rows).of("new", 1).begin(HTTP)
    second, _ = scraped(before)
    assert second != first and second == scraped({})[0]
    assert b'eagleray_request_duration_seconds_count{model="new",version="1",protocol="http"} 0' in second
    rows.close()


def test_metrics_of_a_version_end_an_hour_after_it_was_unloaded(tmp_path: Path) -> None:
    rows = NodeCounters(NodeFolder("node", tmp_path))
    models = write_models(rows, 4)
    RequestMeters(rows).refuse(HTTP, 404)

    def shown() -> set[str]:
        samples = (each for family in families(text(models)).values() for each in family.samples)
        return {each.labels.get("model", "none") for each in samples}

    def text(known: dict[str, ModelEntry]) -> str:
        return render(rows.totals(), model_labels(known), Shown(cpu=False, gpu=False), known).decode()

    def unloaded(*, long_gone: bool) -> ModelEntry:
        return ModelEntry(versions={1: VersionEntry(UNAVAILABLE, UNLOADED, long_gone=long_gone)})

    everything = text(models)
    assert shown() == {"none", "model_0", "model_1", "model_2", "model_3"}
    models |= {"model_1": unloaded(long_gone=False)}
    models |= {name: unloaded(long_gone=True) for name in ("model_2", "model_4")}
    del models["model_3"]  # one of so many that the index has it no more
    assert shown() == {"none", "model_0", "model_1"}
    models |= {f"model_{number}": models["model_0"] for number in (1, 2, 3)}
    del models["model_4"]
    assert text(models) == everything, "they go on where they were"
    assert "model_3" in text({}), "before anything is known of the models"
    rows.close()
