"""A backend whose models double, and packages for it."""

from contextlib import contextmanager

from protocol.infer import InferResponse
from repository_loader.backend_traits import BACKENDS, BackendTraits
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.fakes import config_of

SPECS = [InstanceSpec("m_0", "CPU", 0), InstanceSpec("m_1", "CPU", 0)]


class Doubler:
    """A model that doubles; keeps what its instances were given."""

    def __init__(self, spec):
        self.name = spec.name
        self.may_run_inline = True
        self.batches = []
        self.given = []
        self.closed = 0
        self.error = None
        self.meet = None

    def execute(self, batch):
        self.batches.append([dict(request.inputs) for request in batch.requests])
        if self.error is not None:
            raise self.error
        if self.meet is not None:
            self.meet()
        batch.results = [InferResponse({"Y": 2 * request.inputs["X"]}) for request in batch.requests]
        self.given += [result.outputs["Y"] for result in batch.results]

    def close(self):
        self.closed += 1


class DoublerBackend:
    """The backend `doubler`; a test may reach the instances it made last."""

    made: list[Doubler]
    error: Exception | None = None
    loading = staticmethod(lambda: None)

    def __init__(self, clock=None):
        pass

    def load(self, package, specs):
        if self.error is not None:
            raise self.error
        DoublerBackend.loading()
        DoublerBackend.made = [Doubler(spec) for spec in specs]
        for instance in DoublerBackend.made:
            instance.error = ValueError("too cold") if package.config.parameters["fail"].string_value else None
        return list(DoublerBackend.made)


@contextmanager
def doubler_backend(monkeypatch):
    """Have the backend `doubler`."""
    doubler = BackendTraits(
        "doubler", implementation=f"{__name__}:DoublerBackend", requires={"torch": "eagleray[torch]"}
    )
    monkeypatch.setitem(BACKENDS, "doubler", doubler)
    yield
    DoublerBackend.error = None
    DoublerBackend.loading = staticmethod(lambda: None)


def package_of(text="", path=""):
    name = "" if "backend:" in text or "platform:" in text else 'backend: "doubler" '
    return ModelPackage("m", 1, config_of(name + "max_batch_size: 4 " + text), str(path), "", "")
