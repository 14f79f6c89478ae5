"""A call that is refused for what its headers say."""

from app.grpc.call import Call
from app.grpc.head import GrpcHead
from app.http2.open_connection import OpenConnection


class RefusedCall(Call):
    """A call that is answered by its head alone."""

    __slots__ = ()

    def __init__(self, connection: OpenConnection, stream_id: int, head: GrpcHead) -> None:
        super().__init__(connection, stream_id, head)
        self._end()
        self.context.loop.call_soon(self._refuse)

    def _refuse(self) -> None:
        if self.connection.streams.get(self.stream_id) is self:
            assert self.head.refusal is not None
            self.note(*self.head.refused)
            self._send_end(self.head.refusal)
