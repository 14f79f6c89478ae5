"""A process that holds resources of the node's rate limiter, for `test_node_rate_limiter.py`.

Its arguments are the folder and the names of its instances, each of which needs one R. It reads lines `want <name>`
and `done <name>`, and writes `ready`, `granted <name>` and, when it becomes the arbiter, `arbiter`. At `fork <name>` it
forks a child that does nothing, and writes `forked <pid>`.
"""

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path

import uvloop

from deployments.core.rate_limit import Needs, Resource
from deployments.replica.node_rate_limiter import NodeRateLimiter


def say(*words: str) -> None:
    print(*words, flush=True)


async def main(folder: str, *names: str) -> None:
    loop = asyncio.get_running_loop()
    limiter = NodeRateLimiter(Path(folder), (), loop)
    for name in names:
        await limiter.add(name, Needs((Resource("R", 0, 1),), 1))
    say("ready")
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        command, name = line.decode().split()
        if command == "want":
            limiter.acquire(name, partial(say, "granted", name))
        elif command == "done":
            limiter.release(name)
        elif command == "wait":
            while limiter._server is None:
                await asyncio.sleep(0.01)
            say("arbiter")
        elif command == "fork":
            child = os.fork()
            if not child:
                signal.pause()
            say("forked", str(child))
    limiter.close()


uvloop.run(main(*sys.argv[1:]))  # as Serve does
