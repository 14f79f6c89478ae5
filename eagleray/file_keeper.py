"""An actor that keeps the files that clients sent for other nodes, and for the repository controller's successor.

It imports nothing of ours, and never looks into what it keeps.
"""


class FileKeeper:
    """Keeps files in memory."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put_files(self, name: str, archive: bytes) -> None:
        """Keep files under a name."""
        self._files[name] = archive

    def files(self, name: str) -> bytes:
        """Return the files kept under a name, b"" when there are none."""
        return self._files.get(name, b"")

    def keep_files(self, names: list[str]) -> None:
        """Forget all files but these."""
        self._files = {name: archive for name, archive in self._files.items() if name in names}
