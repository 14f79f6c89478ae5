"""Makes an instance of a model's code: imports it, and calls `initialize`."""

import inspect
import logging
from typing import Any, Final

from deployments.backends.backend import ModelLoadError
from deployments.backends.python.errors import told
from deployments.backends.python.instance import DecoupledPythonInstance, PythonInstance
from deployments.backends.python.model_loop import ModelLoop
from deployments.backends.python.model_module import ModelModule
from deployments.backends.python.opened_inputs import OpenedInputs
from deployments.backends.python.response_sender import Replies
from protocol.signature import Signature

_LOG = logging.getLogger(__name__)

NEEDS_MAIN_THREAD: Final = "only works in main thread"
"""What Python says of `signal.signal` and its like on any other thread."""


def load_instance(
    module: ModelModule,
    file_path: str,
    name: str,
    args: dict[str, str],
    signature: Signature,
    replies: Replies | None,
    *,
    opens_devices: bool = False,
    answers_late: bool = False,
) -> PythonInstance:
    """Return an instance whose `initialize` was called with `args`; a decoupled one answers through `replies`.

    One that `opens_devices` gets inputs in the memory of GPUs; of one that `answers_late`, batches may be `late`.

    Raises:
        ModelLoadError: the class is missing, or the model's own code raised; the reason names the exception and its
            message, the log has the traceback.
    """
    loop: ModelLoop | None = None
    module.model_name = args["model_name"]  # of the folder, unless models share it
    try:
        model = model_class(module, signature.model_name, file_path)()
        if not callable(getattr(model, "execute", None)):
            raise ModelLoadError(f"Python model '{signature.model_name}' does not implement `execute` method.")
        if inspect.iscoroutinefunction(model.execute):
            loop = ModelLoop(name)
        if hasattr(model, "initialize"):
            model.initialize(args)
    except BaseException as error:
        module.close()
        if loop is not None:
            loop.close()
        if isinstance(error, ModelLoadError):
            raise
        level = logging.INFO if NEEDS_MAIN_THREAD in told(error) else logging.ERROR
        _LOG.log(level, "model instance '%s' cannot be loaded", name, exc_info=error, extra=module.whose())
        raise ModelLoadError(told(error)) from None
    module.finish_loading()
    module.may_call = True
    instance: PythonInstance
    if replies is not None:
        instance = DecoupledPythonInstance(name, signature, module, model, loop=loop, replies=replies)
    else:
        inline = loop is None
        instance = PythonInstance(name, signature, module, model, loop=loop, inline=inline, answers_late=answers_late)
    if opens_devices:
        instance.execute = OpenedInputs(instance.execute, replies)  # type: ignore[method-assign]
    return instance


def model_class(module: ModelModule, model_name: str, file_path: str) -> Any:
    """Import the model and return its class.

    Raises:
        ModelLoadError: the module has no `TritonPythonModel`.
    """
    found = getattr(module.load(file_path), "TritonPythonModel", None)
    if found is None:
        raise ModelLoadError(f"Python model '{model_name}' does not define the class 'TritonPythonModel'")
    return found
