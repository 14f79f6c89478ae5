"""Requests that come by deployment handle: arrays in, arrays out, straight into the core."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployments.replica.model_host import ModelHost
from deployments.replica.served_model import ServedModel
from protocol.array_request import plain_id, plain_parameters, request_from_arrays
from protocol.errors import Internal, InvalidArgument, NotFound, ServingError, Unsupported
from protocol.infer import Array, InferRequest, InferResponse, Parameter
from protocol.model_version import parse_version

logger = logging.getLogger(__name__)

Answer = asyncio.Future[dict[str, Array]]


@dataclass(frozen=True, slots=True)
class HandleCall:
    """What a caller asks for; see `ModelReplica.infer`."""

    inputs: Mapping[str, Array]
    outputs: Sequence[str] | None = None
    parameters: Mapping[str, Parameter] | None = None
    request_id: str = ""
    model_name: str = ""
    model_version: int | str = -1


class HandleCalls:
    """Gives handle calls to the hosted models; each has an answer of its own, which comes when it is ready."""

    def __init__(self, host: ModelHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._open: set[Answer] = set()

    @property
    def open_count(self) -> int:
        """How many calls wait for their answers."""
        return len(self._open)

    def submit(self, call: HandleCall) -> Answer:
        """Start a call and return its outputs to be, or the ServingError that it ends with; cancelling gives it up."""
        answer: Answer = self._loop.create_future()
        self._open.add(answer)
        answer.add_done_callback(self._open.discard)

        def reply(request: InferRequest, result: InferResponse | ServingError) -> None:
            if answer.done():
                return
            if isinstance(result, InferResponse):
                answer.set_result(result.outputs)
            else:
                answer.set_exception(result)

        try:
            given = call.model_version
            served = self._find(call.model_name, parse_version(given) if isinstance(given, str) else given)
            if not isinstance(call.inputs, Mapping):
                raise InvalidArgument(f"inputs must be a dict of arrays by name, got {type(call.inputs).__name__}")
            if served.model.signature.decoupled:
                raise Unsupported("Deployment handles don't support models with decoupled transaction policy")
            request = request_from_arrays(
                served.model.signature,
                call.inputs,
                reply,
                outputs=call.outputs,
                parameters=plain_parameters(call.parameters or {}),
                id=plain_id(call.request_id),
            )
        except ServingError as error:
            answer.set_exception(error.without_frames())
        except Exception as error:
            logger.exception("a call by handle could not be understood")
            answer.set_exception(Internal(f"the call could not be understood: {type(error).__name__}"))
        else:
            served.submit_request(request)
            answer.add_done_callback(lambda done: served.cancel_request(request) if done.cancelled() else None)
        return answer

    def _find(self, name: str, version: int) -> ServedModel:
        names = {served_name for served_name, _ in self._host.served}
        if not name:
            if len(names) != 1:
                raise InvalidArgument("model_name must be given: this replica serves several models")
            (name,) = names
        if name not in names:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        key = (name, self._host.core.resolve(name).version if version == -1 else version)
        if key not in self._host.served:
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        return self._host.served[key]
