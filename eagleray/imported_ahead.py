"""What workers import sooner or later is imported before they are forked, and hidden from each until it asks for it.

A worker that is not Eagleray's, or Ray Serve's, so finds what one finds that Ray has started: modules of its own stand
before installed ones of the same name, and NumPy has the threads that the variables ask for once it is imported.
"""

import contextlib
import importlib
import importlib.machinery
import logging
import os
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_OF_SERVE: Final = (
    "anyio.to_thread",
    "fastapi",
    "grpc",
    "grpc_reflection.v1alpha.reflection",
    "jsonschema",
    "opentelemetry.sdk.trace",
    "prometheus_client",
    "pydantic",
    "requests",
    "starlette.routing",
    "uvicorn",
    "uvloop",
)
"""What Ray Serve imports in every worker, and not before it has to."""

_BLAS_THREADS: Final = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The first of these that is set says how many threads NumPy's BLAS has, or else the number of cores does."""

_SERVE: Final = "ray.serve"
_NUMPY: Final = "numpy"

_INSTALLED: Final = (*importlib.machinery.all_suffixes(), ".dist-info")
"""How the names end of what is installed in a folder, but for packages."""

_Stamp = tuple[int, int] | frozenset[str] | None
"""Size and time of a file, what is installed in a folder; None where there is none."""


class ImportedAhead:
    """Modules that were imported and hidden; a finder of `sys.meta_path`."""

    def __init__(self) -> None:
        self._hidden: dict[str, ModuleType] = {}
        self._effects: dict[str, tuple[ModuleType, str, Any]] = {}
        """What importing a package has changed elsewhere, by the package's name."""
        self._files: dict[str, _Stamp] = {}
        self._needed: dict[str, set[str]] = {}
        """What each package has imported, by the names of the packages that bring it."""

    def run(self) -> None:
        """Import everything that can be imported, and hide it."""
        known = {name for name in sys.modules if name.partition(".")[0] != "eagleray"}
        ray_worker = importlib.import_module("ray._private.worker")
        watched = {
            _SERVE: (ray_worker, "blocking_get_inside_async_warned"),
            "deployments": (logging, "raiseExceptions"),
        }
        before = {name: getattr(module, attribute) for name, (module, attribute) in watched.items()}
        with _one_blas_thread(), _no_random_ids():
            for name in (*_OF_SERVE, _NUMPY, _SERVE):
                with contextlib.suppress(Exception):  # it fails again where it is used, and is told there
                    importlib.import_module(name)
            with contextlib.suppress(Exception):
                importlib.import_module("eagleray").import_replica()
        for name, (module, attribute) in watched.items():
            self._effects[name] = module, attribute, getattr(module, attribute)
            setattr(module, attribute, before[name])
        files = {str(file) for module in sys.modules.values() if (file := getattr(module, "__file__", None))}
        self._files = {path: _stamp(path) for path in {*files, *sys.path}}
        for name in list(sys.modules):
            if name not in known and name.partition(".")[0] not in sys.stdlib_module_names:
                self._hidden[name] = sys.modules.pop(name)
        for name, module in self._hidden.items():
            needed = {highest for each in _named_in(module) if (highest := self._highest_above(each))}
            self._needed.setdefault(self._highest_above(name), set()).update(needed)
        for name in self._highest():
            package, _, own_name = name.rpartition(".")
            if package in sys.modules and hasattr(sys.modules[package], own_name):
                delattr(sys.modules[package], own_name)  # `from package import own_name` would import nothing
        sys.meta_path.insert(0, self)

    def is_as_installed(self) -> bool:
        """Return whether the files of all that was imported, and the folders where modules are, are as they were."""
        return all(_stamp(path) == stamp for path, stamp in self._files.items())

    def reveal_all(self) -> None:
        """Have all of it be imported, but for packages in whose place others are."""
        for name in self._highest():
            module = self.take(name)
            if name in sys.modules:
                self._take_below(name)
                continue
            sys.modules[name] = module
            package, _, own_name = name.rpartition(".")
            if package:
                setattr(sys.modules[package], own_name, module)
            self._show_below(name)
        sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what was imported ahead, if it is what would be imported now."""
        module = self._hidden.get(fullname)
        if module is None:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        found = next((spec for spec in others if spec is not None), None)
        spec: ModuleSpec | None = getattr(module, "__spec__", None)
        if found is None or spec is None or found.origin != spec.origin:
            return None
        return ModuleSpec(fullname, _Revealed(self, spec), origin=spec.origin)

    def take(self, name: str) -> ModuleType:
        """Return a module that is hidden, which it is no longer."""
        return self._hidden.pop(name)

    def reveal_below(self, name: str) -> None:
        """Have a package bring the modules below it, what they have imported, and what it changes elsewhere.

        Whoever pickles something that `sys.modules` does not have copies it instead of naming it (cloudpickle).
        """
        self._show_below(name)
        for needed in self._needed.get(name, ()):
            if needed in self._hidden and self._would_be_imported(needed):
                importlib.import_module(needed)

    def _show_below(self, name: str) -> None:
        """Have the modules below a package be imported."""
        sys.modules.update(self._take_below(name))
        if name == _NUMPY:
            set_blas_threads()
            if "numpy.random" in sys.modules:
                sys.modules["numpy.random"].seed()
        if effect := self._effects.get(name):
            setattr(*effect)

    def _highest(self) -> list[str]:
        """Return what is hidden and no part of a package that is."""
        return [each for each in self._hidden if each.rpartition(".")[0] not in self._hidden]

    def _highest_above(self, name: str) -> str:
        """Return the package that has to be imported for a module to show, "" for one that is not hidden."""
        if name not in self._hidden:
            return ""
        return self._highest_above(name.rpartition(".")[0]) or name

    def _would_be_imported(self, name: str) -> bool:
        """Return whether whoever imports this package gets what was imported ahead, and not one of the user's."""
        package = name.rpartition(".")[0]
        return self.find_spec(name, sys.modules[package].__path__ if package else None) is not None

    def _take_below(self, name: str) -> dict[str, ModuleType]:
        below = [each for each in self._hidden if each.startswith(f"{name}.")]
        return {each: self.take(each) for each in below}


class _Revealed(Loader):
    """The loader of a module that has been loaded."""

    def __init__(self, ahead: ImportedAhead, spec: ModuleSpec) -> None:
        self._ahead = ahead
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return it."""
        return self._ahead.take(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Have it be as it was."""
        module.__spec__ = self._spec
        self._ahead.reveal_below(self._spec.name)


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Have NumPy's BLAS start no threads as it is imported: a process that is forked would lose them."""
    kept = os.environ.get(_BLAS_THREADS[0])
    os.environ[_BLAS_THREADS[0]] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS[0]]
        if kept is not None:
            os.environ[_BLAS_THREADS[0]] = kept


def set_blas_threads() -> None:
    """Give NumPy's BLAS the threads that it would have, were it imported now."""
    cores = len(os.sched_getaffinity(0))
    said = (os.environ.get(name, "") for name in _BLAS_THREADS)
    count = next((min(int(each), cores) for each in said if each.isdecimal() and int(each)), cores)
    if count > 1:
        with contextlib.suppress(ImportError):
            importlib.import_module("threadpoolctl").threadpool_limits(count, user_api="blas")


@contextlib.contextmanager
def _no_random_ids() -> Iterator[None]:
    """Have classes of actors that modules define get their ids from elsewhere than Ray's random number generator.

    The first number would seed it, and all workers would draw the same ones from then on.
    """
    actor: Any = importlib.import_module("ray.actor")
    kept = actor.ActorClassID
    actor.ActorClassID = types.SimpleNamespace(from_random=lambda: kept(os.urandom(kept.size())))
    try:
        yield
    finally:
        actor.ActorClassID = kept


def _named_in(module: ModuleType) -> set[str]:
    """Return the modules that a module names, and those from which it has something."""
    named = set()
    for value in list(vars(module).values()):
        with contextlib.suppress(Exception):  # a proxy may answer with any
            named.add(value.__name__ if isinstance(value, ModuleType) else value.__module__)
    return {each for each in named if isinstance(each, str)}


def _stamp(path: str) -> _Stamp:
    try:
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                return frozenset(filter(None, map(_installed, entries)))
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _installed(entry: os.DirEntry[str]) -> str:
    """Return what to know an installed module by, "" for anything else: logs and caches may appear at any time."""
    name = entry.name
    if name.endswith(".pth"):  # leads to other folders
        return f"{name} {entry.stat().st_mtime_ns}"
    package = name.isidentifier() and name != "__pycache__" and entry.is_dir()
    return name if package or name.endswith(_INSTALLED) else ""
