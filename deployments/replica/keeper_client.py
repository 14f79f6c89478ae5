"""How processes reach the actor that keeps the files that clients sent."""

from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from eagleray.file_keeper import FileKeeper
from protocol.errors import Unavailable

_NAMESPACE: Final = "eagleray"
_TIMEOUT_S: Final = 30.0
# Ray's head node is the one that the cluster does not outlive.
_ON_HEAD: Final = {"node:__internal_head__": 0.0001}


class KeeperClient:
    """Asks the actor of one owner, a Serve application; every method blocks.

    The actor is made when there are files to keep; one that has died is made anew, empty. All methods but `end` raise
    `Unavailable` where it does not start, as on a full disk, or does not answer.
    """

    def __init__(self, owner: str) -> None:
        self._name = f"eagleray-files-{owner}"
        self._actor: Any = None

    def put_files(self, name: str, archive: bytes) -> None:
        """Keep files that a client sent."""
        self._ask("put_files", name, archive)

    def files(self, name: str) -> bytes:
        """Return files that a client sent, b"" when they are not known."""
        archive: bytes = self._ask("files", name)
        return archive

    def keep_files(self, names: list[str]) -> None:
        """Forget all files that clients sent but these."""
        self._ask("keep_files", names)

    def end(self) -> None:
        """Forget everything."""
        try:
            ray.kill(ray.get_actor(self._name, namespace=_NAMESPACE))
        except ValueError:
            self._actor = None

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            try:
                return self._call(method, *arguments)
            except RayActorError:
                self._actor = None
                return self._call(method, *arguments)
        except (RayActorError, GetTimeoutError) as error:
            self._actor = None
            reason = " ".join(str(error).split())[:200]
            raise Unavailable(f"the actor that keeps the files of clients does not answer: {reason}") from None

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            self._actor = (
                ray.remote(FileKeeper)
                .options(
                    name=self._name,
                    namespace=_NAMESPACE,
                    lifetime="detached",
                    get_if_exists=True,
                    num_cpus=0,
                    resources=_ON_HEAD,
                )
                .remote()
            )
        return ray.get(getattr(self._actor, method).remote(*arguments), timeout=_TIMEOUT_S)
