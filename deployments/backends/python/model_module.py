"""Imports a `model.py` and the helper modules next to it so that no two models see each other's.

Triton runs each model in a process of its own, with the version's and the model's folder on `sys.path`. Here the
modules of a model live under a package of its own, `eagleray_model_<n>`; an `import helper` in a model's code finds
`eagleray_model_<n>.helper`, at any time and in any thread, because the code of these modules has its own `__import__`.
Names that other code looks up for the model (unpickling a class of `helper`) are found through the model's frame on
the stack, and forgotten when the model is loaded. A helper may have the name of one of Eagleray's own packages.
"""

import builtins
import contextlib
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from deployments.backends.python.server import ModelServer
from deployments.log.line_format import about_requests
from protocol.callers import caller
from protocol.infer import InferRequest

_PREFIX = "eagleray_model_"
_OWNER = "__eagleray_model__"
_OURS = frozenset({"app", "deployments", "eagleray", "protocol", "repository_loader"})
PB_UTILS_NAMES = ("triton_python_backend_utils", "c_python_backend_utils")
_TRIES = 100
_numbers = itertools.count(1)
_owners: dict[str, "ModelModule"] = {}
_sole: "ModelModule | None" = None
_HOME = str(Path(__file__).resolve().parents[3])
_PB_UTILS_FOLDER = str(Path(__file__).resolve().parent / "importable")
"""Where processes that a model spawns find `triton_python_backend_utils`."""
_hidden: dict[str, ModuleType] = {}
"""Packages of ours whose plain names stand for a model's modules."""


class ModelModule:
    """The modules of one model instance. Import and use may happen on any thread.

    `server` is what the model's code may ask, with `may_call` also to call other models. `requests` are those that a
    model runs which is not decoupled, and `callers` what waits for those that a decoupled one got last. `blocks_loop`
    hears that the model would have waited on the event loop's thread.
    """

    def __init__(self, model_path: str, version_path: str, server: ModelServer | None = None) -> None:
        self.server = server
        self._process_id = os.getpid()
        self.may_call = False
        self.callers: tuple[str, ...] = ()
        self.requests: Sequence[InferRequest] = ()
        self.blocks_loop: Callable[[], None] = _nothing
        self.model_name = Path(model_path).name
        self.caller = caller(self.model_name, Path(version_path).name)
        self.version_path = version_path
        self.package = f"{_PREFIX}{next(_numbers)}"
        self._model_path = model_path
        self._local: set[str] = set()
        self._foreign: set[str] = set()
        self._known_sys_path = 0
        self.aliases: set[str] = set()
        self.builtins = {**vars(builtins), "__import__": self._import}
        self._builtin_count = len(vars(builtins))
        self._search_path = [version_path, model_path]
        self._claim()

    def _claim(self) -> None:
        root = ModuleType(self.package)
        root.__path__ = self._search_path
        install()
        sys.modules[self.package] = root
        _owners[self.package] = self

    @property
    def forked(self) -> bool:
        """Whether this is a process that the model has forked, and in which nothing comes back from the server."""
        return os.getpid() != self._process_id

    def whose(self, decoupled: Sequence[InferRequest] = ()) -> dict[str, Any]:
        """Return the `extra` of a record that this model makes; `decoupled` are those that a decoupled model runs."""
        version = Path(self.version_path).name
        number = int(version) if version.isdecimal() else None
        return about_requests(self.model_name, number, self.requests or decoupled)

    def load(self, file_path: str) -> ModuleType:
        """Import the model file and return its module; whatever it raises comes through.

        What stands beside a file that is in no folder of the model's, of a Python-based backend, is its own too.
        """
        _look_again()  # the model may be seconds old
        folder = str(Path(file_path).parent)
        if folder not in self._search_path:
            self._search_path.insert(0, folder)
        name = f"{self.package}.{Path(file_path).stem}"
        return _imported(name, file_path, _Loader(name, file_path))

    def source_files(self) -> list[str]:
        """Return the files of the modules that the model has imported from its folders."""
        prefix = f"{self.package}."
        # A copy is made in one step; other models are being imported on other threads.
        modules = [module for name, module in sys.modules.copy().items() if name.startswith(prefix)]
        files = [getattr(module, "__file__", None) for module in modules]
        return [file for file in files if file is not None]

    def finish_loading(self) -> None:
        """Take what the model put on `sys.path` and the plain names of its modules out of other models' sight."""
        self._adopt_sys_path()
        self._adopt_builtins()
        self._forget_aliases()

    def _forget_aliases(self) -> None:
        while self.aliases:
            name = self.aliases.pop()
            if getattr(sys.modules.get(name), "__name__", "").startswith(f"{self.package}."):
                del sys.modules[name]
                if name in _hidden:
                    sys.modules[name] = _hidden.pop(name)

    def close(self) -> None:
        """Take the modules out of `sys.modules`."""
        self.server = None
        self._forget_aliases()
        _owners.pop(self.package, None)
        for name in [
            name for name in sys.modules.copy() if name == self.package or name.startswith(f"{self.package}.")
        ]:
            del sys.modules[name]

    def is_local(self, name: str) -> bool:
        """Return whether a top-level name means a module in the model's folders."""
        if name in self._local:
            return True
        if len(sys.path) != self._known_sys_path:
            self._adopt_sys_path()
        if name in self._foreign:
            return False
        local = self._find(name)
        (self._local if local else self._foreign).add(name)
        return local

    def _find(self, name: str) -> bool:
        if name in sys.stdlib_module_names or name in PB_UTILS_NAMES:
            return False
        spec = PathFinder.find_spec(f"{self.package}.{name}", self._search_path)
        if spec is None:
            return False
        if spec.loader is not None:
            return True
        # a folder without __init__.py may hold anything, such as a tokenizer's files
        return name not in sys.modules and PathFinder.find_spec(name) is None

    def _adopt_sys_path(self) -> None:
        """Search folders of the model that it put on `sys.path` itself, and keep other models from searching them."""
        for entry in list(sys.path):
            if isinstance(entry, str) and Path(entry).is_relative_to(self._model_path):
                sys.path.remove(entry)
                if entry not in self._search_path:
                    self._search_path.append(entry)
                    _look_again()
        self._known_sys_path = len(sys.path)
        self._foreign.clear()

    def _adopt_builtins(self) -> None:
        """Let the model's code see what it has made builtin itself, as `gettext.install` does."""
        self._builtin_count = len(vars(builtins))
        self.builtins.update(vars(builtins), __import__=self._import)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Do what `__import__` does, for the code of the model."""
        if len(vars(builtins)) != self._builtin_count:
            self._adopt_builtins()
        if level == 0:
            top = name.partition(".")[0]
            if self.is_local(top):
                module = importlib.import_module(f"{self.package}.{name}")
                if type(fromlist) is list:  # C code, such as pickle's, which then looks into sys.modules
                    self._set_alias(name, module)
                if fromlist:
                    return builtins.__import__(module.__name__, globals, locals, fromlist, 0)
                return sys.modules[f"{self.package}.{top}"]
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    def _set_alias(self, name: str, module: ModuleType) -> None:
        present = sys.modules.get(name)
        if present is not None and present.__name__ in _OURS:
            # Our code does not look it up again: its own modules are found by their full names.
            _hidden[name] = present
            present = None
        if present is None or present.__name__.startswith(_PREFIX):
            sys.modules[name] = module
            self.aliases.add(name)


class SoleModule(ModelModule):
    """The modules of a model whose process no other model shares: plain modules, as Triton imports them.

    What the model pickles, and the processes that it spawns, find them by their plain names. They are found behind the
    standard library and before what is installed. Our own packages are taken out of sight, so that a helper may have
    the name of one.
    """

    def _claim(self) -> None:
        global _sole
        _sole = _owners[self.package] = self
        for name in list(sys.modules):
            if name.partition(".")[0] in _OURS:
                del sys.modules[name]
        leave_home()
        index = next((i for i, entry in enumerate(sys.path) if entry.endswith("-packages")), len(sys.path))
        sys.path[index:index] = [*self._search_path, *([] if _PB_UTILS_FOLDER in sys.path else [_PB_UTILS_FOLDER])]
        sys.dont_write_bytecode = True  # it would look like a change of the model to whoever polls the repository

    def load(self, file_path: str) -> ModuleType:
        """Import the model file and return its module; whatever it raises comes through."""
        folder, stem = Path(file_path).parent, Path(file_path).stem
        if str(folder) == self.version_path and folder.parent == Path(self._model_path):
            return importlib.import_module(f"{folder.name}.{stem}")  # as Triton calls it
        if str(folder) not in self._search_path:
            sys.path.insert(sys.path.index(self.version_path), str(folder))
        return _imported(stem, file_path)

    @property
    def forked(self) -> bool:
        """Return False: `Questions` connects a process that the model forks."""
        return False

    def finish_loading(self) -> None:
        """Leave all as it is: nobody else is here."""

    def close(self) -> None:
        """Leave all as it is: the process ends."""


def leave_home() -> None:
    """Take off `sys.path` the folder of our code, with which the process has been started in front for that code alone.

    Once: where Eagleray is installed it is also the folder of all that models import.
    """
    with contextlib.suppress(ValueError):
        sys.path.remove(_HOME)


def _imported(name: str, file_path: str, loader: Loader | None = None) -> ModuleType:
    """Import a file as a module of that name."""
    spec = spec_from_file_location(name, file_path, loader=loader)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _look_again() -> None:
    """Have imports look into the folders again."""
    for _ in range(_TRIES):
        try:
            return importlib.invalidate_caches()
        except RuntimeError:  # another thread, which imports too, has changed what this one goes through
            continue


def install() -> None:
    """Make the modules of models importable; does nothing the second time."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        sys.meta_path.append(_alias_finder)
        importlib.import_module = _import_module


def hide_arguments() -> None:
    """Leave a model that parses the command line an empty one, as in Triton: this process's own is no model's."""
    sys.argv[:] = [""]


def _import_module(name: str, package: str | None = None) -> ModuleType:
    """Do what `importlib.import_module` does; called by a model, find the model's own modules first."""
    caller = _owners.get(sys._getframe(1).f_globals.get(_OWNER, ""))
    if caller is not None and not name.startswith(".") and caller.is_local(name.partition(".")[0]):
        name = f"{caller.package}.{name}"
    return _import_module_of_python(name, package)


def calling_model() -> ModelModule | None:
    """Return the model whose code is on this thread's stack, or that has the process to itself; None for no model."""
    if _sole is not None:
        return _sole
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_globals.get(_OWNER)
        if owner is not None:
            return _owners.get(owner)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def only_model() -> ModelModule | None:
    """Return the one model instance of this process, None when there are several."""
    owners = list(_owners.values())
    return owners[0] if len(owners) == 1 else None


def module_at_work() -> ModelModule | None:
    """Return the model whose code is on this thread's stack, or an instance of the only one in this process."""
    caller = calling_model()
    if caller is not None:
        return caller
    by_name = {owner.model_name: owner for owner in list(_owners.values())}
    return next(iter(by_name.values())) if len(by_name) == 1 else None


def _nothing() -> None:
    pass


class _Loader(SourceFileLoader):
    """Runs a module with its model's `__import__`; leaves no `__pycache__` in the model repository.

    A file written there would look like a change of the model to whoever polls the repository.
    """

    def exec_module(self, module: ModuleType) -> None:
        owner = _owners[module.__name__.partition(".")[0]]
        module.__dict__["__builtins__"] = owner.builtins
        module.__dict__[_OWNER] = owner.package
        super().exec_module(module)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing."""


class _Finder:
    """Finds `eagleray_model_<n>.helper`, at the head of `sys.meta_path`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _AliasFinder:
    """Finds the helper module of the model on the stack by its plain name, at the end of `sys.meta_path`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname.startswith(_PREFIX):
            return None
        owner = calling_model()
        if owner is None or not owner.is_local(fullname):
            return None
        owner.aliases.add(fullname)
        return ModuleSpec(fullname, _AliasLoader(importlib.import_module(f"{owner.package}.{fullname}")))


class _AliasLoader(Loader):
    """Gives an imported module a second name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


_import_module_of_python = importlib.import_module
_finder = _Finder()
_alias_finder = _AliasFinder()
