"""System shared memory as a client uses it: two regions, registered with a server for the time of a run."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

INPUT_REGION = "benchmark_input"
OUTPUT_REGION = "benchmark_output"
UNREGISTER_S = 5.0


@contextmanager
def registered(url: str, tensor: NDArray[np.generic], output_size: int) -> Iterator[Path]:
    """Register the tensor's bytes and room for the answer; yields the file that holds the answer."""
    files = {region: Path(f"/dev/shm/eagleray-{region}-{os.getpid()}") for region in (INPUT_REGION, OUTPUT_REGION)}
    try:
        files[INPUT_REGION].write_bytes(tensor.tobytes())
        files[OUTPUT_REGION].write_bytes(bytes(output_size))
        for region, file in files.items():
            body: dict[str, str | int] = {"key": f"/{file.name}", "offset": 0, "byte_size": file.stat().st_size}
            _post(f"{url}/v2/systemsharedmemory/region/{region}/register", body)
        yield files[OUTPUT_REGION]
        _unregister_all(url)
    finally:
        for file in files.values():
            file.unlink(missing_ok=True)


def _unregister_all(url: str) -> None:
    """Unregister the regions, once the last requests of the load generator have let go of them."""
    ends_s = time.monotonic() + UNREGISTER_S
    while True:
        try:
            return _post(f"{url}/v2/systemsharedmemory/unregister", {})
        except urllib.error.HTTPError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.05)


def _post(url: str, body: dict[str, str | int]) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as response:
        response.read()
