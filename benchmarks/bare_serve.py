"""Ray with one Serve application that does next to nothing: what an idle Ray Serve costs without Eagleray.

python -m benchmarks.bare_serve PORT
"""

import os
import signal
import sys

import ray
from ray import serve


class Empty:
    """Answers every request with 200."""

    def __call__(self) -> str:
        return ""


def main() -> None:
    ray.init(address="local", num_cpus=os.cpu_count(), dashboard_host="127.0.0.1", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(serve.deployment(Empty).bind(), route_prefix="/v2/health/ready")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.pause()


if __name__ == "__main__":
    main()
