"""PyTorch models that are Python code: `backend: "pytorch"` with `runtime: "model.py"`.

A version has `model.py`, in which is a class of `torch.nn.Module`, and beside it `model.pt` with its weights, if it has
any; or it has TorchScript in `model.pt` alone. This runs like any Python model, in an environment of which only PyTorch
is asked.

Source: the PyTorch backend's page of the releases from 24.01 on, and Triton's tests of its Python runtime.
"""

import inspect
import json
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import triton_python_backend_utils as pb_utils

try:
    import torch
except ModuleNotFoundError as error:
    raise RuntimeError("PyTorch is not installed where this model runs: pip install torch") from error

_FILES: Final = ("model.py", "model.pt")
_WEIGHTS: Final = ".pt"
_MODULE: Final = "pytorch_model_"
_THREADS: Final = "NUM_THREADS"
_INTER_OP_THREADS: Final = "NUM_INTEROP_THREADS"
_COMPILE: Final = "TORCH_COMPILE_OPTIONAL_PARAMETERS"

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes for each instance


class TritonPythonModel:
    """One instance of a PyTorch model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and have it compiled when it is first called.

        Raises:
            TritonModelException: a parameter cannot be read, or there is no model; whatever its code raises.
        """
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._inputs = [each["name"] for each in config["input"]]
        self._outputs = [each["name"] for each in config["output"]]
        self._batches = config["max_batch_size"] > 0
        _set_threads(parameters)
        options = _compile_options(parameters)
        path = _model_file(config.get("default_model_filename", ""))
        self._module = ModuleType(f"{_MODULE}{secrets.token_hex(8)}")  # PyTorch remembers what it compiled by the name
        try:
            with torch.inference_mode():
                self._load(path, args, options)
        except BaseException:
            self.finalize()
            raise

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Run the model on the rows of all requests, or on each request by itself where it does not batch."""
        inputs = [[self._tensor(request, name) for name in self._inputs] for request in requests]
        with torch.inference_mode():
            if self._batches:
                row_counts = [tensors[0].shape[0] for tensors in inputs]
                batch = [
                    torch.cat(tensors) if len(tensors) > 1 else tensors[0] for tensors in zip(*inputs, strict=True)
                ]
                outputs = [torch.split(tensor, row_counts) for tensor in self._run(batch)]
                answers: list[Sequence[torch.Tensor]] = list(zip(*outputs, strict=True))
            else:
                answers = [self._run(tensors) for tensors in inputs]
        return [pb_utils.InferenceResponse(self._named(tensors)) for tensors in answers]

    def finalize(self) -> None:
        """Forget the model's code."""
        sys.modules.pop(self._module.__name__, None)

    def _load(self, path: str, args: dict[str, str], options: dict[str, Any]) -> None:
        if path.endswith(".py"):
            _fill(self._module, path)
            model = _load_class(self._module, path, args)
            self._device = _device(args, model)
            self._model = _compiled(model.to(self._device).eval(), options)
        else:
            model = torch.jit.load(path, map_location=None if args["model_instance_kind"] == "MODEL" else "cpu")
            self._device = _device(args, model)
            self._model = model.to(self._device).eval()

    def _tensor(self, request: Any, name: str) -> torch.Tensor:
        given = pb_utils.get_input_tensor_by_name(request, name)
        if given is None:
            raise pb_utils.TritonModelException(f"the request has no input '{name}'")
        return torch.from_dlpack(given.to_dlpack()).to(self._device)

    def _run(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return as many tensors as there are outputs."""
        outputs = self._model(*inputs)
        found = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        for name, tensor in zip(self._outputs, found, strict=False):
            if not isinstance(tensor, torch.Tensor):
                raise pb_utils.TritonModelException(
                    f"output '{name}' must be a tensor, the model has returned {type(tensor).__name__}"
                )
        if len(found) < len(self._outputs):
            raise pb_utils.TritonModelException(
                f"the model has returned {len(found)} tensors, and its configuration has {len(self._outputs)} outputs"
            )
        return found[: len(self._outputs)]

    def _named(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        named = zip(self._outputs, tensors, strict=True)
        return [pb_utils.Tensor.from_dlpack(name, tensor.contiguous()) for name, tensor in named]


def _set_threads(parameters: dict[str, str]) -> None:
    if count := _whole(parameters, _THREADS):
        torch.set_num_threads(count)
    if (count := _whole(parameters, _INTER_OP_THREADS)) and count != torch.get_num_interop_threads():
        try:
            torch.set_num_interop_threads(count)
        except RuntimeError as error:  # it may be set once in a process, before anything has run
            pb_utils.Logger.log_warn(f"{_INTER_OP_THREADS} has no effect: {error}")


def _whole(parameters: dict[str, str], key: str) -> int:
    """Return a number of threads, 0 where none is given."""
    text = parameters.get(key, "0")
    if not text.isdecimal():
        raise pb_utils.TritonModelException(f"parameter '{key}' must be a number of threads, got '{text}'")
    return int(text)


def _compile_options(parameters: dict[str, str]) -> dict[str, Any]:
    text = parameters.get(_COMPILE, "{}")
    try:
        options = json.loads(text)
    except ValueError as error:
        raise pb_utils.TritonModelException(f"parameter '{_COMPILE}' is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise pb_utils.TritonModelException(f"parameter '{_COMPILE}' must be a JSON object, got '{text}'")
    if "model" in options:
        raise pb_utils.TritonModelException("'model' is not an optional parameter for 'torch.compile'")
    return options


def _compiled(model: torch.nn.Module, options: dict[str, Any]) -> Any:
    """Return a model that is compiled as it is called; what cannot be, as without a C++ compiler, runs as it is."""
    try:
        compiled = torch.compile(model, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise pb_utils.TritonModelException(f"parameter '{_COMPILE}': {error}") from error

    def call(*inputs: torch.Tensor) -> Any:
        torch._dynamo.config.suppress_errors = True  # is the thread's that calls
        return compiled(*inputs)

    return call


def _model_file(default: str) -> str:
    folder = pb_utils.get_model_dir()
    names = [default] if default else _FILES
    found = next((path for path in (os.path.join(folder, name) for name in names) if os.path.isfile(path)), "")
    if not found:
        version = os.path.basename(folder)
        raise pb_utils.TritonModelException(f"version {version} has no file {' or '.join(map(repr, names))}")
    return found


def _load_class(module: ModuleType, path: str, args: dict[str, str]) -> torch.nn.Module:
    """Return an object of the class that a module has, with its weights."""
    model: torch.nn.Module = _model_class(module, os.path.basename(path))()
    weights = f"{path.removesuffix('.py')}{_WEIGHTS}"
    if os.path.isfile(weights):
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    else:
        pb_utils.Logger.log_info(f"'{args['model_name']}' has no file of weights")
    return model


def _fill(module: ModuleType, path: str) -> None:
    """Run a model's code as its module, which finds what this code finds, and leaves no compiled file behind."""
    module.__file__ = path
    vars(module)["__builtins__"] = __builtins__
    sys.modules[module.__name__] = module  # where what is defined in it is looked up by its name
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(module))


def _model_class(module: ModuleType, file: str) -> type[torch.nn.Module]:
    """Return the first by name, of those that are defined here and need no arguments if there are any."""
    found: list[type[torch.nn.Module]] = [each for _, each in sorted(vars(module).items()) if _is_module_class(each)]
    if not found:
        raise pb_utils.TritonModelException(f"'{file}' has no class of torch.nn.Module")
    found = [each for each in found if each.__module__ == module.__name__] or found
    return next((each for each in found if _needs_nothing(each)), found[0])


def _is_module_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, torch.nn.Module)


def _needs_nothing(made: type[torch.nn.Module]) -> bool:
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = inspect.signature(made).parameters.values()
    return all(each.default is not inspect.Parameter.empty or each.kind in free for each in needed)


def _device(args: dict[str, str], model: torch.nn.Module) -> torch.device:
    kind = args["model_instance_kind"]
    if kind == "GPU":
        return torch.device("cuda", int(args["model_instance_device_id"]))
    first = next(model.parameters(), None) if kind == "MODEL" else None
    return torch.device("cpu") if first is None else first.device
