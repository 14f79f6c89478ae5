"""An actor that outlives the repository controller, and keeps for its successor what shall run.

It imports nothing of ours, and never looks into what it keeps.
"""


class StateKeeper:
    """Keeps one state, and the files that clients sent, in memory."""

    def __init__(self) -> None:
        self._key = ""
        self._state = b""
        self._files: dict[str, bytes] = {}

    def save(self, key: str, state: bytes) -> None:
        """Keep a state in place of the last; `key` says what it was made for."""
        self._key, self._state = key, state

    def load(self, key: str) -> bytes:
        """Return what was saved last, b"" when that was for something else."""
        return self._state if key == self._key else b""

    def put_files(self, name: str, archive: bytes) -> None:
        """Keep files under a name."""
        self._files[name] = archive

    def files(self, name: str) -> bytes:
        """Return the files kept under a name, b"" when there are none."""
        return self._files.get(name, b"")

    def keep_files(self, names: list[str]) -> None:
        """Forget all files but these."""
        self._files = {name: archive for name, archive in self._files.items() if name in names}
