"""Python imports this by itself where the folder is on its path: in all processes of a server that `steps.py` watches."""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CONTROLLER = "deployments.control.repository_controller"


class _Watched(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        began = module.RepositoryController.__init__

        def begin(*arguments: Any) -> None:
            import step_counter

            step_counter.count_steps()
            began(*arguments)

        module.RepositoryController.__init__ = begin


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != CONTROLLER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        spec.loader = _Watched(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
