"""The backend `identity`: OUTPUT<n> is INPUT<n>."""

import time
from collections.abc import Sequence
from typing import Final

from deployments.backends.backend import Batch, ModelInstance
from deployments.backends.row_batch import to_client_shape
from deployments.backends.testing.number import number
from deployments.core.clock import Clock
from protocol.bytes_tensor import blank_array
from protocol.infer import Array, InferRequest, InferResponse, Parameter
from protocol.signature import Signature
from repository_loader.package import InstanceSpec, ModelPackage

_PARAMETERS: Final[dict[str, Parameter]] = {"param0": "an example string parameter", "param1": 42, "param2": False}


class IdentityBackend:
    """Answers every request with its own inputs, and with zeros for an optional one that it leaves out.

    `execute_delay_ms` is how long a batch takes, times the instance's place times `instance_wise_delay_multiplier`
    where that is set; `creation_delay_sec` is how long loading takes.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        del clock  # every batch is answered when `execute` returns

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Return an instance for each spec; `Backend.load`."""
        config = package.config
        delay_ms = number(config, "execute_delay_ms")
        multiplier = number(config, "instance_wise_delay_multiplier")
        time.sleep(number(config, "creation_delay_sec"))
        signature = Signature.from_config(config)
        return [
            IdentityInstance(spec.name, signature, delay_ms * max(1, index * multiplier) / 1000)
            for index, spec in enumerate(specs)
        ]


class IdentityInstance:
    """Copies nothing: the response has the request's arrays."""

    def __init__(self, name: str, signature: Signature, delay_s: float) -> None:
        self.name = name
        self.may_run_inline = not delay_s
        self._signature = signature
        self._delay_s = delay_s
        self._inputs = {output: f"INPUT{output.removeprefix('OUTPUT')}" for output in signature.outputs}

    def execute(self, batch: Batch) -> None:
        """Wait, then answer; `ModelInstance.execute`."""
        if self._delay_s:
            time.sleep(self._delay_s)
        batch.results = [self._response(request) for request in batch.requests]

    def close(self) -> None:
        """Hold nothing."""

    def _response(self, request: InferRequest) -> InferResponse:
        signature, inputs = self._signature, request.inputs
        outputs = {
            output: to_client_shape(
                inputs[name] if name in inputs else self._zeros(output, request), signature.outputs[output], signature
            )
            for output, name in self._inputs.items()
            if request.outputs is None or output in request.outputs
        }
        return InferResponse(outputs, dict(_PARAMETERS))

    def _zeros(self, output: str, request: InferRequest) -> Array:
        """Return what stands for an optional input that was left out: a tensor of zeros, 1 for each variable size."""
        spec = self._signature.outputs[output]
        dims = [1 if dim == -1 else dim for dim in spec.model_dims]
        shape = [request.rows, *dims] if self._signature.max_batch_size > 0 else dims
        return blank_array(spec.datatype.numpy, tuple(shape))
