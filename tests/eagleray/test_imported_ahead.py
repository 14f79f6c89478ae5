"""What was imported before a worker was forked shows in it as if the worker itself imported it."""

import os
import sys
from pathlib import Path

import pytest

from tests.serving import environment, run

MOST = min(64, len(os.sched_getaffinity(0)))
"""How many threads NumPy's library has at most: one for each core, and 64 are the most that it is built for."""

THREADS = """
def threads():
    import threadpoolctl
    return [each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]
"""

AHEAD = """
import logging, os, sys
from eagleray.imported_ahead import ImportedAhead
import ray
seen = set(sys.modules)
ahead = ImportedAhead()
ahead.run()
hidden = dict(ahead._hidden)
"""


def printed(code: str, **variables: str) -> list[str]:
    """Run code; returns the words that it prints."""
    done = run(sys.executable, "-c", code, env=environment(**variables))
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


def test_nothing_shows_before_it_is_imported_and_then_it_is_what_was_imported() -> None:
    code = """
print({name.partition(".")[0] for name in set(sys.modules) - seen} - sys.stdlib_module_names)
print(len(os.listdir("/proc/self/task")))
import numpy, numpy.linalg, pickle
print(numpy is hidden["numpy"], numpy.linalg is hidden["numpy.linalg"], "numpy" in numpy.__spec__.origin)
print(pickle.loads(pickle.dumps(numpy.ones(2))).sum())
import ray.serve
from ray.serve import handle
print(ray.serve is hidden["ray.serve"], handle is hidden["ray.serve.handle"], "deployments" in sys.modules)
"""
    assert printed(AHEAD + code) == ["set()", "1", *3 * ["True"], "2.0", *2 * ["True"], "False"]


@pytest.mark.parametrize("statement", ["from ray import serve", "import ray.serve, grpc", "import fastapi"])
def test_what_is_imported_shows_with_all_that_it_has_imported(statement: str) -> None:
    """Or cloudpickle would copy classes of modules that do not show, as it does with functions of `__main__`."""
    code = f"""
import sys
import ray._private.workers.default_worker
{{}}{statement}
print(*(name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names))
"""
    alone, ahead = (set(printed(code.format(first))) for first in ("", AHEAD))
    assert len(alone) > 100  # and some whose names begin with `_`, of Cython and sysconfig, are of no interest
    assert {each for each in alone - ahead if not each.startswith("_")} == set()


def test_an_application_of_somebody_elses_is_built_where_modules_were_imported_ahead() -> None:
    code = """
from ray import serve
@serve.deployment
class Theirs: pass
print(Theirs.bind() is not None)
"""
    assert printed(AHEAD + code) == ["True"]


def test_all_shows_where_a_replica_is_made() -> None:
    code = """
print(logging.raiseExceptions, ray._private.worker.blocking_get_inside_async_warned)
import eagleray
eagleray.ModelReplica
print(logging.raiseExceptions, ray._private.worker.blocking_get_inside_async_warned)
print([name for name, module in hidden.items() if sys.modules[name] is not module])
print("deployments.replica.model_replica" in hidden, ahead in sys.meta_path)
"""
    assert printed(AHEAD + code) == ["True", "False", "False", "True", "[]", "True", "False"]


def test_a_module_of_the_users_stands_before_one_that_was_imported_ahead(tmp_path: Path) -> None:
    (tmp_path / "orjson.py").write_text("own = True")
    (tmp_path / "tritonclient").mkdir()
    (tmp_path / "tritonclient/__init__.py").write_text("own = True")
    (tmp_path / "deployments.py").write_text("own = True")
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
import orjson, tritonclient, deployments
print(orjson.own, tritonclient.own, deployments.own)
del sys.modules["deployments"]
import eagleray
eagleray.ModelReplica
print(sys.modules["orjson"].own, sys.modules["tritonclient"].own, "tritonclient.grpc" in sys.modules)
"""
    assert printed(AHEAD + code) == [*5 * ["True"], "False"]


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, MOST),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "2"}, min(2, MOST)),
        ({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "0"}, 1),
        ({"OMP_NUM_THREADS": "64"}, MOST),
    ],
)
def test_numpy_has_the_threads_that_variables_ask_for_when_it_is_imported(
    variables: dict[str, str], count: int
) -> None:
    """As it has where nothing was imported ahead; a program may set them before it imports NumPy."""
    code = f"{THREADS}import os\nos.environ.update({variables})\nimport numpy\nprint(threads())"
    assert printed(code) == printed(AHEAD + code) == [f"[{count}]"]


INSTALLS = """
from pathlib import Path

folder, late = map(Path, os.environ["PYTHONPATH"].split(os.pathsep))
for name in (".pytest_cache", "__pycache__"):
    (folder / name).mkdir()
(folder / "server.log").touch()
print(ahead.is_as_installed())
for module in (folder / "new.py", folder / "new.pth"):
    module.touch()
    print(f"{module.name}:{ahead.is_as_installed()}")
    module.unlink()
for package in (folder / "new", late):
    package.mkdir()
    print(f"{package.name}:{ahead.is_as_installed()}")
    package.rmdir()
print(ahead.is_as_installed())
(folder / "old.pth").touch()
print(f"old.pth:{ahead.is_as_installed()}")
"""


def test_what_is_installed_meanwhile_is_noticed(tmp_path: Path) -> None:
    """But not what is written beside it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old.pth").touch()
    noticed = [f"{name}:False" for name in ("new.py", "new.pth", "new", "late")]
    path = os.pathsep.join((str(folder), str(tmp_path / "late")))
    assert printed(AHEAD + INSTALLS, PYTHONPATH=path) == ["True", *noticed, "True", "old.pth:False"]


def test_random_numbers_of_numpy_are_of_each_process() -> None:
    code = """
import numpy.random  # as a module that is imported ahead may do
ahead._hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "numpy"}
sys.meta_path.insert(0, ahead)
for _ in range(2):
    if not os.fork():
        import numpy
        print(numpy.random.random(), flush=True)
        os._exit(0)
    os.wait()
"""
    assert len(set(printed(AHEAD + code))) == 2
