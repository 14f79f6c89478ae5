"""Where the process of a model writes a large output at once, so that the response is not copied on its way out."""

from collections.abc import Sequence

from protocol.infer import InferRequest, InferResponse
from protocol.signature import Signature


class ResponseRooms:
    """Finds rooms for the output of a model that has only one; how large it will be is told by the last one."""

    def __init__(self, signature: Signature) -> None:
        names = tuple(signature.outputs)
        self._output = names[0] if len(names) == 1 and not signature.decoupled else None
        self._row_bytes = 0

    def offer(self, requests: Sequence[InferRequest]) -> None:
        """Give requests a place for their output, unless their clients have named one."""
        output, row_bytes = self._output, self._row_bytes
        if output is None or not row_bytes:
            return
        for request in requests:
            if request.room is not None and request.places is None:
                room = request.room(row_bytes * request.rows)
                if room is not None:
                    request.places = {output: room}

    def learn(self, request: InferRequest, outcome: object) -> None:
        """Look at what a request was answered with."""
        if self._output is None or not isinstance(outcome, InferResponse):
            return
        array = outcome.outputs.get(self._output)
        if array is not None:
            self._row_bytes = 0 if array.dtype.hasobject else -(-array.nbytes // max(1, request.rows))
