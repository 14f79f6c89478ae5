"""The log files of a model's replicas, which Serve keeps in the folder of the Ray session of each node."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

_FOLLOW_S = 0.5
_MAX_LINE_BYTES = 1 << 16


def default_folder() -> Path:
    """Return where Serve of the last Ray session that started on this machine logs."""
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "session_latest" / "logs" / "serve"


class ModelLogs:
    """The lines that a model and its replicas have logged.

    Replicas of its own log nothing else. Of the file that packed models share, the lines that name the model count.
    """

    def __init__(self, model: str, folder: Path) -> None:
        """Find the files.

        Raises:
            click.ClickException: there are none.
        """
        from repository_loader.plan import PACKED_APP, app_name

        own = sorted(folder.glob(f"replica_{_escaped(app_name(model))}_*.log"), key=_age)
        self._model = model
        self.packed = not own
        self.files = own or sorted(folder.glob(f"replica_{PACKED_APP}_*.log"), key=_age)
        if not self.files:
            raise click.ClickException(
                f"no replica on this machine has logged for '{model}' in {folder}; the logs of other nodes are there"
            )

    def last(self, count: int) -> list[tuple[str, str]]:
        """Return file and line of the last ones."""
        found = [(path.name, line) for path in self.files for line in self._lines(path)]
        return found[-count:] if count else []

    def follow(self) -> Iterator[tuple[str, str]]:
        """Return the lines that come, for ever; those of files that are new are not among them."""
        ends = {path: path.stat().st_size for path in self.files}
        while True:
            for path, end in ends.items():
                with path.open("rb") as file:
                    file.seek(end)
                    for line in iter(lambda file=file: file.readline(_MAX_LINE_BYTES), b""):  # type: ignore[misc]
                        ends[path] = file.tell()
                        text = line.decode("utf-8", "replace").rstrip("\n")
                        if self._is_of_model(text):
                            yield path.name, text
            time.sleep(_FOLLOW_S)

    def _lines(self, path: Path) -> Iterator[str]:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if self._is_of_model(line):
                    yield line.rstrip("\n")

    def _is_of_model(self, line: str) -> bool:
        names = (f"'{self._model}'", f"[{self._model}]", f'"model": {json.dumps(self._model)}')
        return not self.packed or any(name in line for name in names)


def lines_of_node(model: str, count: int) -> list[tuple[str, str]]:
    """Return file and line of the last lines of this node's replicas; runs in a task there."""
    from deployments.serve_internals import serve_logs_folder

    try:
        return ModelLogs(model, Path(serve_logs_folder())).last(count)
    except click.ClickException:
        return []


def _print_of_cluster(model: str, address: str, count: int, as_json: bool) -> None:
    from app.cli.cluster_nodes import ask_each_node

    told = ask_each_node(address, lines_of_node, model, count)
    if not any(told.values()):
        raise click.ClickException(f"no replica has logged for '{model}' on {len(told)} nodes")
    for node, found in told.items():
        for file, line in found:
            told_by = {"node": node, "file": file, "line": line}
            click.echo(json.dumps(told_by) if as_json else f"[{node.partition(' ')[0]}] {line}")


def _escaped(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _age(path: Path) -> float:
    return path.stat().st_mtime


@click.command()
@click.argument("model")
@click.option("--lines", "count", default=100, help="How many lines.", show_default=True)
@click.option("--follow", is_flag=True, help="Go on with the lines that come.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where Serve logs; left out: the last Ray session.")
@click.option(
    "--ray-address", default="", help="A running cluster, to print what all its nodes have ('auto' finds one)."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each line.")
def logs(model: str, count: int, follow: bool, folder: Path | None, ray_address: str, as_json: bool) -> None:
    """Print what a model's replicas have logged: those on this machine, or on every node of a cluster."""
    if ray_address:
        if follow or folder is not None:
            raise click.UsageError("--ray-address goes with neither --follow nor --folder")
        _print_of_cluster(model, ray_address, count, as_json)
        return
    found = ModelLogs(model, folder or default_folder())

    def show(file: str, line: str) -> None:
        click.echo(json.dumps({"file": file, "line": line}) if as_json else line)

    if found.packed and not as_json:
        click.echo(f"'{model}' has no process of its own; these are the lines of the shared one that name it", err=True)
    for each in found.last(count):
        show(*each)
    if follow:
        for each in found.follow():
            show(*each)
