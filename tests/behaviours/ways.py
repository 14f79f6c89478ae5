"""The ways in which requests go to the server: tritonclient over gRPC and gRPC streams, its bodies over plain HTTP."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol
from urllib.parse import quote

import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.behaviours.tensors import to_array
from tests.serving import Client, infer_path

HTTP_STATUSES = {"INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "UNIMPLEMENTED": 501}
"""Of Triton's status codes; all others are 400."""


class Sent:
    """A request on its way, and what has come back: `results` of tritonclient, or `error` with its code (`None`: untold)."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.results: list[Any] = []
        self.error: tuple[str | int | None, str] | None = None
        self.headers: dict[str, str] = {}
        self.ended = threading.Event()
        self.cancel = cancel

    def take(self, result: Any, error: Any, ends: bool = True) -> None:
        """Take a response, or an error, which is the end."""
        if error is not None:
            status = error.status()
            self.error = (status.removeprefix("StatusCode.") if status else None, error.message())
        elif result is not None:
            self.results.append(result)
        if ends or error is not None:
            self.ended.set()


class Way(Protocol):
    """Sends the requests of one folder."""

    def send(self, model: str, version: str, inputs: dict[str, Any], **rest: Any) -> Sent:
        """Send a request; returns at once."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def _inputs(module: Any, described: dict[str, Any], **how: Any) -> list[Any]:
    made = []
    for name, tensor in described.items():
        array = to_array(tensor)
        one = module.InferInput(name, list(array.shape), tensor[0])
        one.set_data_from_numpy(array, **how)
        made.append(one)
    return made


def _outputs(module: Any, described: dict[str, Any] | None, **how: Any) -> list[Any] | None:
    if described is None:
        return None
    return [
        module.InferRequestedOutput(name, **how, class_count=(options or {}).get("classification", 0))
        for name, options in described.items()
    ]


class Http:
    """Every request has a connection of its own."""

    def __init__(self, http: str, grpc: str) -> None:
        self._address = http
        self._clients = ExitStack()

    def send(
        self,
        model: str,
        version: str,
        inputs: dict[str, Any],
        *,
        outputs: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        json: bool = False,
        **rest: Any,
    ) -> Sent:
        """Send a request; `json` has the tensors travel as JSON."""
        module = tritonclient.http
        how = {"binary_data": not json}
        body, length = module.InferenceServerClient.generate_request_body(
            _inputs(module, inputs, **how), _outputs(module, outputs, **how), **rest
        )
        client = self._clients.enter_context(Client(self._address))
        lengths = {} if length is None else {"Inference-Header-Content-Length": str(length)}
        client.send("POST", infer_path(quote(model), version), bytes(body), {**lengths, **(headers or {})})
        sent = Sent(client.hang_up)
        threading.Thread(target=_receive, args=(client, sent), daemon=True).start()
        return sent

    def close(self) -> None:
        """Close the connections."""
        self._clients.close()


def _receive(client: Client, sent: Sent) -> None:
    try:
        answer = client.receive()
    except (OSError, ValueError, AttributeError) as error:  # it was closed: the request is cancelled
        sent.error = ("CANCELLED", str(error))
        sent.ended.set()
        return
    sent.headers = answer.headers
    if answer.status != 200:
        sent.error = (answer.status, answer.error)
    else:
        length = answer.headers.get("inference-header-content-length")
        parse = tritonclient.http.InferenceServerClient.parse_response_body
        sent.results.append(parse(answer.body, header_length=int(length) if length else None))
    sent.ended.set()


class Grpc:
    """Every request is a call of its own on one channel."""

    def __init__(self, http: str, grpc: str) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(grpc)

    def send(
        self,
        model: str,
        version: str,
        inputs: dict[str, Any],
        *,
        outputs: dict[str, Any] | None = None,
        json: bool = False,
        **rest: Any,
    ) -> Sent:
        """Send a request; `json` is for HTTP only."""
        module = tritonclient.grpc
        sent = Sent(lambda: call.cancel())
        made = _inputs(module, inputs), _outputs(module, outputs)
        call = self._client.async_infer(model, made[0], sent.take, version, made[1], **rest)
        return sent

    def close(self) -> None:
        """Close the channel."""
        self._client.close()


class Stream:
    """All requests go on one stream; a request without an id gets one, by which its responses are known."""

    def __init__(self, http: str, grpc: str) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(grpc)
        self._sent: dict[str, Sent] = {}
        self._client.start_stream(self._take)

    def send(
        self,
        model: str,
        version: str,
        inputs: dict[str, Any],
        *,
        outputs: dict[str, Any] | None = None,
        json: bool = False,
        **rest: Any,
    ) -> Sent:
        """Send a request; `json` is for HTTP only."""
        module = tritonclient.grpc
        rest["request_id"] = rest.get("request_id") or f"unnamed-{len(self._sent)}"
        sent = self._sent[rest["request_id"]] = Sent(lambda: self._client.stop_stream(cancel_requests=True))
        made = _inputs(module, inputs), _outputs(module, outputs)
        self._client.async_stream_infer(model, made[0], version, made[1], enable_empty_final_response=True, **rest)
        return sent

    def _take(self, result: Any, error: InferenceServerException | None) -> None:
        if error is not None:
            named = [sent for name, sent in self._sent.items() if f"[request id: {name}]" in error.message()]
            for sent in named or [sent for sent in self._sent.values() if not sent.ended.is_set()][:1]:
                sent.take(None, error)
            return
        response = result.get_response()
        final = response.parameters["triton_final_response"].bool_param
        sent = self._sent[response.id]
        sent.take(result if response.outputs else None, None, ends=final)

    def close(self) -> None:
        """End the stream."""
        self._client.stop_stream()
        self._client.close()


WAYS: dict[str, Callable[[str, str], Way]] = {"http": Http, "grpc": Grpc, "stream": Stream}
