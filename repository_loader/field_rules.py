"""What becomes of each field of `ModelConfig`: the table behind the warnings, the refusals and `docs/configuration.md`.

A path names a field without indexes and map keys; a row speaks for everything below its path. Rules that Triton has too
(`validation` and its kin) refuse with Triton's texts before this table is asked.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import PYTHON_RUNTIME

Verdict = Literal["yes", "warning", "refused"]

ENSEMBLE = "ensemble"
COLUMNS = ("onnxruntime", "pytorch", "tensorrt", "python", ENSEMBLE)
"""Backends that Eagleray has, and ensembles."""
FIRST_RESPONSE_FAMILY = "nv_inference_first_response_histogram_ms"
"""The only family that `model_metrics` can customise."""

_ALL = frozenset(COLUMNS)
_BACKENDS = _ALL - {ENSEMBLE}


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The fate of one field.

    Attributes:
        path: `instance_group.rate_limiter`.
        meaning: what Eagleray does with it, for the page.
        warned: columns in which it has no effect, which a warning says.
        refused: columns in which a model that sets it is not loaded.
        because: why, where it is warned of or refused.
        harmless: whether a value says only what is done anyway.
    """

    path: str
    meaning: str
    warned: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    because: str = ""
    harmless: Callable[[ModelConfig, Any], bool] | None = None

    def verdict(self, column: str) -> Verdict:
        """Return what becomes of the field in a backend."""
        return "refused" if column in self.refused else "warning" if column in self.warned else "yes"


def _is_had(config: ModelConfig, runtime: str) -> bool:
    return bool(config.backend) and runtime in (PYTHON_RUNTIME, f"libtriton_{config.backend}.so")


def _is_unpinned(config: ModelConfig, memory: Any) -> bool:
    return not memory.enable


def _tensors(kind: str) -> Iterable[FieldRule]:
    yield FieldRule(f"{kind}.name", "the tensor's name; PyTorch models find theirs as in Triton (`INPUT__0`, …)")
    yield FieldRule(f"{kind}.data_type", "compared with the model where it says its own")
    yield FieldRule(f"{kind}.dims", "compared with the model where it says its own")
    yield FieldRule(f"{kind}.reshape", "done and undone around the model")
    yield FieldRule(f"{kind}.is_shape_tensor", "", refused=_ALL, because="shape tensors are not offered")
    yield FieldRule(
        f"{kind}.is_non_linear_format_io", "", refused=_ALL, because="engines with non-linear formats are not offered"
    )


_WHOLE_OPTIMIZATION = frozenset({ENSEMBLE})
_UNPINNED = frozenset({"onnxruntime", "python", "pytorch"})

_ROWS = (
    FieldRule("name", "must be the name of the model's folder; may be left out"),
    FieldRule("platform", "follows from `backend`, or the other way round"),
    FieldRule("backend", "told from the model's file when neither it nor `platform` is set"),
    FieldRule(
        "runtime",
        "`model.py`: the Python-based backend of `--backend-directory`, of pytorch also Eagleray's own; "
        "`libtriton_<backend>.so` changes nothing",
        refused=_BACKENDS,
        warned=frozenset({ENSEMBLE}),
        because="backends are part of Eagleray, and no library is loaded",
        harmless=_is_had,
    ),
    FieldRule("version_policy", "chooses the versions that are served"),
    FieldRule("max_batch_size", "0: the model does not batch"),
    *_tensors("input"),
    FieldRule("input.format", "checked and shown to clients; changes nothing, as in Triton"),
    FieldRule(
        "input.allow_ragged_batch",
        "requests of different shapes share a batch: flat, one after the other; a Python model gets each by itself",
        refused=frozenset({"tensorrt"}),
        because="engines are given no ragged batches",
    ),
    FieldRule(
        "input.optional",
        "may be left out of a request; ONNX models only where they do not batch",
        warned=frozenset({"tensorrt"}),
        because="an engine needs every input, a request without it fails",
    ),
    *_tensors("output"),
    FieldRule("output.label_filename", "labels of classification"),
    *(
        FieldRule(
            path,
            meaning,
            refused=frozenset({"tensorrt"}),
            warned=frozenset({"python", ENSEMBLE}),
            because="only backends that join requests to one batch use it",
        )
        for path, meaning in (
            ("batch_input", "tensors that tell a model where each request of a ragged batch is"),
            ("batch_output", "outputs that are cut as an input was"),
        )
    ),
    FieldRule(
        "optimization.graph",
        "ONNX Runtime's level of graph optimization",
        warned=frozenset({"pytorch", "tensorrt", "python"}),
        refused=_WHOLE_OPTIMIZATION,
        because="only ONNX Runtime optimizes graphs when it loads them",
    ),
    FieldRule(
        "optimization.priority",
        "PRIORITY_MAX gives the instances' CUDA streams high priority",
        warned=frozenset({"onnxruntime", "python"}),
        refused=_WHOLE_OPTIMIZATION,
        because="the backend makes its CUDA streams itself",
    ),
    FieldRule(
        "optimization.cuda",
        "",
        warned=_BACKENDS,
        refused=_WHOLE_OPTIMIZATION,
        because="CUDA graphs, busy waiting and streams for copies are not used",
    ),
    *(
        FieldRule(
            f"optimization.execution_accelerators.{kind}_execution_accelerator",
            meaning,
            warned=frozenset({"pytorch", "tensorrt", "python"}),
            refused=_WHOLE_OPTIMIZATION,
            because="only ONNX Runtime has execution accelerators",
        )
        for kind, meaning in (
            ("gpu", "`tensorrt` and `cuda` with their parameters, but for CUDA graphs; `gpu_io` means nothing"),
            ("cpu", "`openvino`, where the installed ONNX Runtime has it"),
        )
    ),
    *(
        FieldRule(
            f"optimization.{kind}_pinned_memory",
            meaning,
            warned=warned,
            refused=_WHOLE_OPTIMIZATION,
            because="the backend moves tensors itself and never from pinned memory",
            harmless=_is_unpinned,
        )
        for kind, meaning, warned in (
            ("input", "whether inputs pass pinned memory on their way to a GPU (default: yes)", frozenset({"python"})),
            ("output", "whether outputs pass it on their way back (default: yes)", _UNPINNED),
        )
    ),
    FieldRule(
        "optimization.gather_kernel_buffer_threshold",
        "",
        warned=_BACKENDS,
        refused=_WHOLE_OPTIMIZATION,
        because="inputs are not joined by a kernel",
    ),
    FieldRule(
        "optimization.eager_batching",
        "",
        warned=_BACKENDS,
        refused=_WHOLE_OPTIMIZATION,
        because="a batch is joined when an instance is free for it",
    ),
    *(
        FieldRule(f"dynamic_batching.{name}", meaning, refused=frozenset({ENSEMBLE}))
        for name, meaning in (
            ("preferred_batch_size", "a batch of such a size does not wait for more"),
            ("max_queue_delay_microseconds", "how long a smaller batch waits"),
            ("preserve_ordering", "answers leave in the order of their requests"),
            ("priority_levels", "1 is the highest"),
            ("default_priority_level", "that of requests which do not say theirs"),
            ("default_queue_policy", "timeouts, what follows them, and the size of the queue"),
            ("priority_queue_policy", "the same for one priority level"),
        )
    ),
    *(
        FieldRule(f"sequence_batching.{name}", meaning, refused=frozenset({ENSEMBLE}))
        for name, meaning in (
            ("direct", "each sequence has a row of an instance's batches; `READY` is false in rows without a request"),
            ("oldest", "batches are made of whichever sequences have a request, one of each at a time"),
            ("max_sequence_idle_microseconds", "a sequence without requests for so long is over"),
            ("control_input", "inputs that say where in its sequence a request is"),
            ("state", "tensors that a model returns and gets back with the next request; they may grow"),
            ("iterative_sequence", "a request that its model reschedules runs again"),
        )
    ),
    *(
        FieldRule(f"ensemble_scheduling.{name}", meaning, refused=_BACKENDS)
        for name, meaning in (
            ("step.model_name", "the model of the step"),
            ("step.model_version", "-1: the highest"),
            ("step.input_map", "which tensors the step takes"),
            ("step.output_map", "which tensors it makes"),
        )
    ),
    FieldRule(
        "ensemble_scheduling.step.model_namespace",
        "",
        warned=frozenset({ENSEMBLE}),
        refused=_BACKENDS,
        because="the model is found by its name, in the ensemble's own repository first",
    ),
    FieldRule(
        "ensemble_scheduling.max_inflight_requests",
        "how many requests of each step are under way at the same time; others wait",
        refused=_BACKENDS,
    ),
    *(
        FieldRule(f"instance_group.{name}", meaning, refused=frozenset({ENSEMBLE}))
        for name, meaning in (
            ("name", "begins the names of its instances"),
            (
                "kind",
                "KIND_AUTO is a GPU if there is one that the backend can use; what runs where: see above",
            ),
            ("count", "instances on each device; threads or processes: see above"),
            ("gpus", "GPUs of the cluster, by number, on which the group has instances; all when none is named"),
            ("passive", "the group gets no requests; of Python models it has instances, of others none"),
            ("rate_limiter", "with `--rate-limit=execution_count` an instance runs while its resources are free"),
        )
    ),
    FieldRule(
        "instance_group.profile",
        "the first is the optimization profile of the group's instances; a warning names the others",
        refused=frozenset({"onnxruntime", "pytorch", "python", ENSEMBLE}),
    ),
    *(
        FieldRule(f"instance_group.{name}", "", warned=_BACKENDS, refused=frozenset({ENSEMBLE}), because=because)
        for name, because in (
            ("secondary_devices", "deep learning accelerators are not used"),
            ("host_policy", "threads and memory are not bound to cores or NUMA nodes"),
        )
    ),
    FieldRule(
        "default_model_filename",
        "the file in the version's folder",
        warned=frozenset({ENSEMBLE}),
        because="an ensemble opens no file",
    ),
    FieldRule(
        "cc_model_filenames",
        'the file for GPUs of a compute capability (`"7.5"`)',
        warned=frozenset({"python", ENSEMBLE}),
        because="the same is run on every device",
    ),
    FieldRule("metric_tags", "labels of the model's metrics, each behind `_`"),
    FieldRule("parameters", "see below"),
    FieldRule(
        "model_warmup",
        "run by each instance before it is ready; inputs that a sample leaves out are zeros",
        refused=frozenset({ENSEMBLE}),
    ),
    FieldRule(
        "model_operations",
        "libraries of operators, looked for beside the model first",
        warned=_ALL - {"onnxruntime"},
        because="only ONNX Runtime loads libraries of operators",
    ),
    FieldRule("model_transaction_policy", "a Python model may answer a request many times; any other answers once"),
    FieldRule(
        "model_repository_agents",
        "`checksum` is verified before the model is loaded, `version_policy` read as the field; a warning names others",
    ),
    FieldRule("response_cache.enable", "responses are kept, where the server has a cache (`--cache-config`)"),
    FieldRule("model_metrics", f"the buckets of `{FIRST_RESPONSE_FAMILY}`; a warning names other families"),
)

FIELDS: dict[str, FieldRule] = {rule.path: rule for rule in _ROWS}
