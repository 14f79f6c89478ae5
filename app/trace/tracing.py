"""What an ingress traces: whose turn it is, by the settings of each model, and where the traces go."""

import logging

from app.service.trace_settings import TraceSettings
from app.trace.collector import Collector
from app.trace.sampler import Sampler
from app.trace.span_export import SpanExport
from app.trace.trace_file import TraceFile
from app.trace.traced_target import TracedTarget
from deployments.lane.sink import Target

logger = logging.getLogger(__name__)


class Tracing:
    """Puts a `TracedTarget` before the targets of models that are traced; others are as they would be without it.

    All but `close` belongs to the loop's thread.
    """

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._samplers: dict[str, Sampler] = {"": Sampler(settings.sampling())}
        if settings.exports:
            export = SpanExport(settings.exporter, settings.resource)
            self._collector = Collector(export.export, export.finish)
        else:
            file = TraceFile(settings.file)
            self._collector = Collector(file.write, file.finish)
        self._goes = bool(settings.exports or settings.file)
        if settings.sampling().flags and not self._goes:
            logger.warning("no traces are written: --trace-config triton,file=<path> says where to")

    @property
    def reads_parents(self) -> bool:
        """Whether requests are traced as part of what their clients have begun."""
        return self._settings.exports

    def settings_changed(self) -> None:
        """Sample by the settings that hold now; where they have not changed, turns go on."""
        samplers = {}
        for model in ("", *self._settings.models):
            sampling = self._settings.sampling(model)
            known = self._samplers.pop(model, None)
            samplers[model] = known if known is not None and known.sampling == sampling else Sampler(sampling)
            if known is not None and known is not samplers[model]:
                known.ended = True
        for sampler in self._samplers.values():
            sampler.ended = True
        self._samplers = samplers
        self._collector.wake()

    def target(self, name: str, target: Target) -> Target:
        """Return where requests to a model go that would go to this target."""
        sampler = self._sampler(name)
        if not sampler.sampling.flags or not self._goes:
            return target
        return TracedTarget(target, sampler, self._collector.put)

    def count_left(self, model: str = "") -> int:
        """Return how many more requests to a model, or to those without settings of their own, are traced; -1: any."""
        return self._sampler(model).count_left

    def _sampler(self, model: str) -> Sampler:
        return self._samplers.get(model) or self._samplers[""]

    def close(self, timeout_s: float) -> None:
        """Write what is left; blocks."""
        self._collector.close(timeout_s)
