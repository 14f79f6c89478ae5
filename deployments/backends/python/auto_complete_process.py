"""The process that imports a model and calls its `auto_complete_config`; started by `auto_complete`.

It reads its task from standard input and writes one line of JSON to the file descriptor named by its argument, so that
nothing the model prints can be taken for the result. It imports no more than a model needs: it is started often.
"""

import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    """Do the one task and leave without waiting for threads that the model started."""
    results = int(sys.argv[1])
    os.set_inheritable(results, False)
    task = json.load(sys.stdin)
    try:
        result = _complete(task)
    except BaseException as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    data = json.dumps(result, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(results, data) :]
    sys.stdout.flush()
    os._exit(0)


def _complete(task: dict[str, Any]) -> dict[str, Any]:
    from deployments.backends.python.model_module import ModelModule
    from deployments.backends.python.pb_utils import ModelConfig

    module = ModelModule(task["model_path"], task["version_path"]).load(task["file_path"])
    model_class = getattr(module, "TritonPythonModel", None)
    if model_class is None:
        return {"error": f"Python model '{task['name']}' does not define the class 'TritonPythonModel'"}
    if not hasattr(model_class, "auto_complete_config"):
        return {"config": None}
    returned = model_class.auto_complete_config(ModelConfig(task["config"]))
    if not isinstance(returned, ModelConfig):
        function = f"auto_complete_config function in model '{task['name']}'"
        return {"error": f"{function} must return a valid pb.ModelConfig object."}
    return {"config": returned.as_dict()}


if __name__ == "__main__":
    main()
