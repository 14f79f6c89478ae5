"""A replica with one echo model that listens on TCP, in a process of its own; holds all requests but pings.

Run as `python -m tests.deployments.lane.far_replica HOST`; prints its port. It forks at FORK, and prints the child's pid.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile

from protocol.infer import InferRequest, InferResponse
from tests.deployments.lane.harness import Replica

PING, FORK = b"ping", b"fork"


async def serve(host: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        replica = Replica(folder, "far", asyncio.get_running_loop())
        model = replica.model

        def hold(request: InferRequest) -> None:
            model.held.append(request)
            body = bytes(request.parameters["body"])  # type: ignore[index, arg-type]
            if body == FORK:
                if not (child := os.fork()):
                    signal.pause()
                print(child, flush=True)
            if body in (PING, FORK):
                request.reply(model.held.pop(), InferResponse({}))

        model.submit_request = hold
        listener = socket.create_server((host, 0))
        listener.setblocking(False)
        await replica.server.listen([listener, replica.sock])
        print(listener.getsockname()[1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
