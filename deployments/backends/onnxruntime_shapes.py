"""What ONNX Runtime makes of a file's inputs and outputs, in a process of its own, where the file says too little.

Triton completes every ONNX model so. Here the file is read instead, which takes no process; but a file may leave the
shapes of its outputs to be worked out, and one in ONNX Runtime's own format (`.ort`) is read by nothing else.
"""

from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.core import side_process
from repository_loader.filled_batches import model_file
from repository_loader.onnx_graph import DATA_TYPES

_CARRIED = frozenset(DATA_TYPES.values())
_PROCESS = "deployments.backends.onnxruntime_shapes"


def work_out(config: ModelConfig, model_path: str, file_path: str, timeout_s: float) -> ModelConfig:
    """Return a configuration with nothing but `input` and `output`: the tensors of the graph, with all their dims.

    Raises:
        ModelLoadError: ONNX Runtime does not open the file, crashed or took too long.
    """
    libraries = list(config.model_operations.op_library_filename)
    task = {"file": model_file(file_path), "model_path": model_path, "libraries": libraries}
    try:
        found = side_process.run(_PROCESS, task, timeout_s).value
    except side_process.SideProcessError as error:
        raise ModelLoadError(f"unable to load model '{config.name}', ONNX Runtime {error}") from None
    if "error" in found:
        raise ModelLoadError(str(found["error"]))
    graph = ModelConfig()
    for field in ("input", "output"):
        for name, data_type, dims in found[field]:
            known = data_type if data_type in _CARRIED else "TYPE_INVALID"
            getattr(graph, field).add(name=name, data_type=DataType.Value(known), dims=dims)
    return graph


def _read(task: dict[str, Any]) -> dict[str, Any]:
    import onnxruntime

    from deployments.backends.onnxruntime import graph_of, load_error
    from deployments.backends.onnxruntime_options import CPU, register_libraries

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        register_libraries(options, task["libraries"], task["model_path"])
        session = onnxruntime.InferenceSession(task["file"], options, [CPU])
    except ModelLoadError as error:
        return {"error": error.reason}
    except Exception as error:  # ONNX Runtime's, which have no common class
        return {"error": load_error(error).reason}
    graph = graph_of(session)
    return {
        "input": [(tensor.name, tensor.data_type, tensor.dims) for tensor in graph.inputs],
        "output": [(tensor.name, tensor.data_type, tensor.dims) for tensor in graph.outputs],
    }


if __name__ == "__main__":
    side_process.answer(_read)
