"""The process that imports a model and calls its `auto_complete_config`; started by `auto_complete`.

It imports no more than a model needs: it is started often.
"""

from typing import Any

from deployments.core.side_process import answer


def _complete(task: dict[str, Any]) -> dict[str, Any]:
    from deployments.backends.python.model_module import ModelModule, leave_home
    from deployments.backends.python.pb_utils import ModelConfig

    leave_home()
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
    answer(_complete)
