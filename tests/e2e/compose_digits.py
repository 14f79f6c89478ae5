"""A Serve application of somebody else's, in the same cluster: it composes two models by their handles.

    python compose_digits.py RAY_ADDRESS < request

Reads `{"images": [base64 of a PNG, …]}`, deploys the application, calls it, prints its answer as JSON and removes it.
"""

import asyncio
import base64
import json
import sys
from typing import Any

import numpy as np
import ray
from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 0}, graceful_shutdown_wait_loop_s=0.1)
class ReadDigits:
    def __init__(self) -> None:
        self.preprocess = serve.get_app_handle("digits_preprocess")
        self.packed = serve.get_app_handle("eagleray-packed")

    async def one(self, image: bytes) -> int:
        pixels = await self.preprocess.infer.remote({"IMAGE_BYTES": np.array([[image]], dtype=object)})
        scores = await self.packed.infer.remote({"IMAGE": pixels["IMAGE"]}, outputs=["SCORES"], model_name="digits")
        assert list(scores) == ["SCORES"]
        return int(scores["SCORES"].argmax())

    async def refusals(self) -> list[list[str]]:
        return [
            await self.refusal(self.packed, {"IMAGE": np.zeros((1, 3), np.float32)}, "digits"),
            await self.refusal(self.packed, {"IMAGE": np.zeros((1, 64), np.int32)}, "digits"),
            await self.refusal(self.preprocess, {"IMAGE_BYTES": np.array([[b"no image"]], dtype=object)}),
            await self.refusal(self.preprocess, {}),
        ]

    async def together(self) -> list[str]:
        """Return what three calls get that arrive together, the second of which no array can be made of."""
        image = np.zeros((1, 64), np.float32)
        given = (image, [[1.0], [1.0, 2.0]], image)
        calls = [self.packed.infer.remote({"IMAGE": each}, model_name="digits") for each in given]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [str(getattr(answer, "cause", answer)) if isinstance(answer, Exception) else "" for answer in answers]

    async def refusal(self, handle: Any, inputs: dict[str, np.ndarray], model: str = "") -> list[str]:
        try:
            await handle.infer.remote(inputs, model_name=model)
        except Exception as error:
            cause = getattr(error, "cause", error)
            return [type(cause).__name__, str(cause)]
        return ["", "nothing was refused"]

    async def __call__(self, images: list[bytes]) -> dict[str, Any]:
        return {
            "digits": await asyncio.gather(*map(self.one, images)),
            "refusals": await self.refusals(),
            "together": await self.together(),
        }


def main() -> None:
    images = [base64.b64decode(image) for image in json.load(sys.stdin)["images"]]
    ray.init(address=sys.argv[1], log_to_driver=False)
    handle = serve.run(ReadDigits.bind(), name="read_digits", route_prefix=None)
    try:
        print(json.dumps(handle.remote(images).result(timeout_s=60)))
    finally:
        serve.delete("read_digits")


if __name__ == "__main__":
    main()
