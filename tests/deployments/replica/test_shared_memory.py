import asyncio
import os
import resource
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelInferRequest

from deployments.replica.node_folder import NodeFolder
from deployments.replica.region_table import RegionTable
from deployments.replica.shared_memory import RESERVED_PREFIX, Regions
from protocol.errors import AlreadyExists, Internal, InvalidArgument, NotFound
from protocol.grpc_infer import GrpcInferCodec
from protocol.http_infer import HttpInferCodec
from protocol.infer import InferRequest, InferResponse
from protocol.signature import Signature
from tests.full_disk import full_disk
from tests.no_more_files import no_more_files

SIZE = 10_000


def regions_of(tmp_path: Path) -> Regions:
    """Return what a process of the node sees."""
    return Regions(RegionTable(NodeFolder("node", tmp_path)))


@pytest.fixture
def key() -> Iterator[str]:
    name = f"eagleray-test-{secrets.token_hex(8)}"
    path = Path("/dev/shm") / name
    path.write_bytes(bytes(SIZE))
    yield f"/{name}"
    path.unlink(missing_ok=True)


@pytest.fixture
def shm_root() -> Iterator[Path]:
    """Yield a root for the node's folder that is on the file system of the objects, as it is outside of tests."""
    with tempfile.TemporaryDirectory(prefix="eagleray-test-", dir="/dev/shm") as root:
        yield Path(root)


def test_a_region_is_a_window_into_the_object(key: str, tmp_path: Path) -> None:
    regions = regions_of(tmp_path)
    regions.register("r", key, 5000, 1000)
    regions.view("r", 10, 4)[:] = b"abcd"
    assert Path("/dev/shm", key[1:]).read_bytes()[5010:5014] == b"abcd"
    assert regions.status("r") == [{"name": "r", "key": key, "offset": 5000, "byte_size": 1000}]


@pytest.mark.parametrize(
    ("offset", "size"), [(0, SIZE + 1), (SIZE, 1), (1, SIZE), (2**63, 1), (0, 2**63), (2**62, 2**62), (0, 0), (-1, 5)]
)
def test_a_region_outside_the_object_is_refused(key: str, offset: int, size: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="failed to register shared memory region 'r': invalid args"):
        regions_of(tmp_path).register("r", key, offset, size)


@pytest.mark.parametrize("offset,size", [(0, SIZE), (SIZE - 1, 1)])
def test_a_region_up_to_the_end_is_taken(key: str, offset: int, size: int, tmp_path: Path) -> None:
    regions_of(tmp_path).register("r", key, offset, size)


@pytest.mark.parametrize(
    "bad", ["/", "///", "/..", ".", "/a/b", "/a\0b", f"/{RESERVED_PREFIX}1", "/../etc/passwd", "x" * 300]
)
def test_keys_that_are_reserved_or_no_names_are_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot register shared memory region 'r' with key"):
        regions_of(tmp_path).register("r", bad, 0, 1)


def test_names_and_keys_are_short(key: str, tmp_path: Path) -> None:
    regions = regions_of(tmp_path)
    regions.register("ż" * 512, key.rjust(1024, "/"), 0, 1)
    for name in ("ż" * 512 + "x", "x" * 1025):
        with pytest.raises(InvalidArgument, match=r"^the name of a shared memory region has more than 1024 bytes$"):
            regions.register(name, key, 0, 1)
        with pytest.raises(InvalidArgument, match=r"^the name of a shared memory region has more than 1024 bytes$"):
            asyncio.run(regions.register_device(name, bytes(64), 0, 1))
    with pytest.raises(InvalidArgument, match=r"^the key of a shared memory region has more than 1024 bytes$"):
        regions.register("r", key.rjust(1025, "/"), 0, 1)


def test_a_missing_object_and_a_link_are_not_opened(key: str, tmp_path: Path) -> None:
    with pytest.raises(Internal, match="Unable to open shared memory region: ''"):
        regions_of(tmp_path).register("r", "", 0, 0)
    with pytest.raises(Internal, match="Unable to open shared memory region: '/no-such-eagleray-object'"):
        regions_of(tmp_path).register("r", "/no-such-eagleray-object", 0, 1)
    link = Path("/dev/shm") / f"{key[1:]}-link"
    os.symlink("/etc/hostname", link)
    try:
        with pytest.raises(Internal):
            regions_of(tmp_path).register("r", f"/{link.name}", 0, 1)
    finally:
        link.unlink()


def test_a_name_is_taken_once(key: str, tmp_path: Path) -> None:
    regions = regions_of(tmp_path)
    regions.register("r", key, 0, 10)
    with pytest.raises(AlreadyExists, match="shared memory region 'r' already in manager"):
        regions.register("r", key, 0, 10)


def test_ranges_of_a_region_are_checked(key: str, tmp_path: Path) -> None:
    regions = regions_of(tmp_path)
    regions.register("r", key, 0, 100)
    assert regions.view("r", 100, 0).nbytes == 0
    for offset, byte_size in ((101, 0), (100, 1), (-1, 1), (-100, 0)):
        with pytest.raises(InvalidArgument, match="Invalid offset for shared memory region: 'r'"):
            regions.view("r", offset, byte_size)
    for offset, byte_size in ((1, 100), (1, -1)):
        with pytest.raises(InvalidArgument, match=r"Invalid offset [+] byte size for shared memory region: 'r'"):
            regions.view("r", offset, byte_size)
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'other'"):
        regions.view("other", 0, 1)


def test_a_view_outlives_the_registration(key: str, tmp_path: Path) -> None:
    regions = regions_of(tmp_path)
    regions.register("r", key, 0, 100)
    view = regions.view("r", 0, 4)
    regions.unregister("r")
    view[:] = b"late"
    with pytest.raises(NotFound):
        regions.status("r")
    regions.unregister("r")  # no error, as in Triton


SIGNATURE = Signature.from_config(
    text_format.Parse(
        """
        name: "m" max_batch_size: 8
        input { name: "X" data_type: TYPE_INT32 dims: 4 }
        output { name: "Y" data_type: TYPE_INT32 dims: 4 }
        """,
        ModelConfig(),
    )
)
Y = np.arange(4, dtype=np.int32).reshape(1, 4)


def decoded(kind: str, regions: Regions) -> tuple[HttpInferCodec | GrpcInferCodec, InferRequest]:
    """Return a request that wants its output at the beginning of region `r`, and its codec."""
    if kind == "grpc":
        message = ModelInferRequest(model_name="m", raw_input_contents=[Y.tobytes()])
        message.inputs.add(name="X", datatype="INT32", shape=Y.shape)
        parameters = message.outputs.add(name="Y").parameters
        parameters["shared_memory_region"].string_param = "r"
        parameters["shared_memory_byte_size"].int64_param = Y.nbytes
        grpc = GrpcInferCodec(SIGNATURE, "1", shared_memory=regions)
        return grpc, grpc.decode(message.SerializeToString(), None, lambda *_: None)
    where = {"shared_memory_region": "r", "shared_memory_byte_size": Y.nbytes}
    document = {
        "inputs": [{"name": "X", "datatype": "INT32", "shape": Y.shape, "data": Y.ravel().tolist()}],
        "outputs": [{"name": "Y", "parameters": where}],
    }
    http = HttpInferCodec(SIGNATURE, "1", shared_memory=regions)
    return http, http.decode(orjson.dumps(document), None, lambda *_: None)


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("anew", [False, True], ids=["gone", "registered-anew"])
@pytest.mark.parametrize("cached", [False, True], ids=["", "response-cache"])
def test_an_output_goes_where_its_region_was_when_the_request_came(
    key: str, kind: str, anew: bool, cached: bool, tmp_path: Path
) -> None:
    regions = regions_of(tmp_path)
    regions.register("r", key, 0, 100)
    codec, request = decoded(kind, regions)
    if cached:
        request.places = None
    regions.unregister("r")
    if anew:
        regions.register("r", key, 5000, 100)
    codec.encode(request, InferResponse({"Y": Y + 1}))
    content = Path("/dev/shm", key[1:]).read_bytes()
    assert content[: Y.nbytes] == (Y + 1).tobytes()
    assert not any(content[Y.nbytes :])


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_an_output_whose_object_became_too_small_meanwhile_is_an_error(key: str, kind: str, tmp_path: Path) -> None:
    regions = regions_of(tmp_path)
    regions.register("r", key, 5000, 100)
    codec, request = decoded(kind, regions)
    os.truncate(Path("/dev/shm", key[1:]), 5000 + Y.nbytes - 1)
    with pytest.raises(InvalidArgument, match="shared memory region 'r' is larger than its object"):
        codec.encode(request, InferResponse({"Y": Y}))
    os.truncate(Path("/dev/shm", key[1:]), 5000 + Y.nbytes)
    codec.encode(request, InferResponse({"Y": Y}))


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_an_output_for_which_there_is_no_memory_is_an_error_and_the_next_finds_it_again(
    key: str, kind: str, tmp_path: Path
) -> None:
    path = Path("/dev/shm", key[1:])
    regions = regions_of(tmp_path)
    regions.register("r", key, 5000, 100)
    codec, request = decoded(kind, regions)
    os.truncate(path, 0)  # the kernel sends the same signal where a full /dev/shm has no memory for a page
    with pytest.raises(InvalidArgument, match="'r' is larger than its object, or there is no memory for it"):
        codec.encode(request, InferResponse({"Y": Y}))
    os.truncate(path, 6000)
    codec, request = decoded(kind, regions_of(tmp_path))
    codec.encode(request, InferResponse({"Y": Y}))
    assert path.read_bytes()[5000:].startswith(Y.tobytes())
    assert bytes(regions.view("r", 0, Y.nbytes)) == Y.tobytes()


def test_every_process_of_the_node_has_a_change_at_once(key: str, tmp_path: Path) -> None:
    ours, theirs = regions_of(tmp_path), regions_of(tmp_path)
    assert not theirs.registered
    ours.register("a", key, 0, 10)
    theirs.register("b", key, 10, 10)
    assert ours.registered and theirs.registered
    ours.view("b", 0, 2)[:] = b"ok"
    assert bytes(theirs.view("b", 0, 2)) == b"ok"
    with pytest.raises(AlreadyExists):
        theirs.register("a", key, 0, 10)
    ours.unregister("a")
    assert [row["name"] for row in theirs.status()] == ["b"]
    with pytest.raises(NotFound):
        theirs.view("a", 0, 1)
    theirs.unregister()
    assert not ours.registered


DIES_BEFORE_IT_TELLS = """
import os, sys
from pathlib import Path, PosixPath
from deployments.replica.node_folder import NodeFolder
from deployments.replica.region_table import RegionTable
from deployments.replica.shared_memory import Regions

class Last(PosixPath):
    def rename(self, target):
        super().rename(target)
        os._exit(0)

folder = NodeFolder("node", Path(sys.argv[1]))
folder.path = Last(folder.path)
Regions(RegionTable(folder)).register("r", sys.argv[2], 0, 10)
"""


def test_a_change_whose_process_dies_as_it_makes_it_is_found_all_the_same(key: str, tmp_path: Path) -> None:
    regions, other = regions_of(tmp_path), regions_of(tmp_path)
    assert not regions.registered and not other.registered
    command = [sys.executable, "-c", DIES_BEFORE_IT_TELLS, str(tmp_path), key]
    subprocess.run(command, check=True, timeout=60)
    assert regions.view("r", 0, 10)
    other.register("s", key, 0, 10)
    assert [row["name"] for row in regions.status()] == ["r", "s"]


def test_memory_that_was_unregistered_elsewhere_is_let_go(key: str, tmp_path: Path) -> None:
    ours, theirs = regions_of(tmp_path), regions_of(tmp_path)
    ours.register("a", key, 0, 10)
    ours.register("b", key, 0, 10)
    del ours
    theirs.view("a", 0, 10)
    used = theirs.view("b", 0, 4)
    assert Path("/proc/self/maps").read_text().count(key) == 2
    regions_of(tmp_path).unregister("a")
    theirs.forget()
    assert Path("/proc/self/maps").read_text().count(key) == 1
    regions_of(tmp_path).unregister("b")
    theirs.forget()
    used[:] = b"late"
    del used
    assert key not in Path("/proc/self/maps").read_text()


def test_an_object_made_anew_under_its_old_name_is_mapped_anew(key: str, tmp_path: Path) -> None:
    ours, theirs = regions_of(tmp_path), regions_of(tmp_path)
    ours.register("r", key, 0, 4)
    theirs.view("r", 0, 4)[:] = b"old!"
    path = Path("/dev/shm", key[1:])
    path.unlink()
    path.write_bytes(b"new!")
    ours.unregister("r")
    ours.register("r", key, 0, 4)
    assert bytes(theirs.view("r", 0, 4)) == b"new!"


def test_an_object_that_its_client_has_unlinked_is_mapped_by_all_while_it_is_registered(
    key: str, shm_root: Path
) -> None:
    ours = regions_of(shm_root)
    ours.register("r", key, 0, 4)
    ours.view("r", 0, 4)[:] = b"old!"
    path = Path("/dev/shm", key[1:])
    path.unlink()
    assert bytes(regions_of(shm_root).view("r", 0, 4)) == b"old!"
    path.write_bytes(b"new!")
    late = regions_of(shm_root)
    assert bytes(late.view("r", 0, 4)) == b"old!"
    ours.register("s", key, 0, 4)
    assert bytes(late.view("s", 0, 4)) == b"new!"


def test_no_name_of_an_object_stays_when_it_is_not_registered(key: str, shm_root: Path) -> None:
    regions, object_ = regions_of(shm_root), Path("/dev/shm", key[1:])
    regions.register("r", key, 0, 4)
    regions.register("s", key, 4, 4)
    with pytest.raises(InvalidArgument):
        regions.register("t", key, 0, SIZE + 1)
    assert object_.stat().st_nlink == 3
    regions.unregister("r")
    assert object_.stat().st_nlink == 2
    regions.unregister()
    assert object_.stat().st_nlink == 1


def test_a_region_whose_object_is_gone_is_listed_and_not_found(key: str, tmp_path: Path) -> None:
    regions_of(tmp_path).register("r", key, 0, 4)
    Path("/dev/shm", key[1:]).unlink()
    late = regions_of(tmp_path)
    assert [row["name"] for row in late.status()] == ["r"]
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'r'"):
        late.view("r", 0, 4)


def test_a_process_that_may_open_no_more_files_goes_on_with_what_it_knows(key: str, tmp_path: Path) -> None:
    one, other = regions_of(tmp_path), regions_of(tmp_path)
    one.register("old", key, 0, 10)
    assert len(other.view("old", 0, 10)) == 10
    one.register("new", key, 0, 20)
    with no_more_files():
        assert other.registered
        assert len(other.view("old", 0, 10)) == 10
        other.forget()
    assert len(other.view("new", 0, 20)) == 20


def test_a_region_that_could_not_be_opened_is_opened_when_it_can_be(key: str, tmp_path: Path) -> None:
    one, other = regions_of(tmp_path), regions_of(tmp_path)
    one.register("r", key, 0, 10)
    content = Path("/dev/shm", key[1:])
    content.rename(f"{content}-away")
    try:
        with pytest.raises(NotFound):
            other.view("r", 0, 10)
    finally:
        Path(f"{content}-away").rename(content)
    assert len(other.view("r", 0, 10)) == 10


def test_a_registration_that_finds_no_room_changes_nothing(key: str, shm_root: Path) -> None:
    regions = regions_of(shm_root)
    assert not regions.registered
    with full_disk(), pytest.raises(OSError):
        regions.register("r", key, 0, 10)
    assert Path("/dev/shm", key[1:]).stat().st_nlink == 1
    with pytest.raises(NotFound):
        regions.view("r", 0, 1)
    regions.register("r", key, 0, 10)
    assert regions_of(shm_root).view("r", 0, 1) == b"\0"


FILLS_THE_MEMORY = """
import errno
from pathlib import Path
from deployments.replica.node_folder import NodeFolder
from deployments.replica.region_table import RegionTable
from deployments.replica.shared_memory import Regions

regions = Regions(RegionTable(NodeFolder("node")))
for name in "ab":
    Path("/dev/shm", name).write_bytes(bytes(4096))
    regions.register(name, name, 0, 4096)
try:
    Path("/dev/shm/filler").write_bytes(bytes(1 << 20))
except OSError as error:
    assert error.errno == errno.ENOSPC
try:
    regions.register("c", "a", 0, 1)
except OSError as error:
    assert error.errno == errno.ENOSPC
for name in "ab":
    regions.unregister(name)
assert not regions.registered
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts something else at /dev/shm, as root")
def test_regions_are_unregistered_where_no_memory_is_left() -> None:
    mount = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    subprocess.run(["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", FILLS_THE_MEMORY], check=True)


def test_a_refused_registration_changes_nothing(key: str, tmp_path: Path) -> None:
    regions = regions_of(tmp_path)
    with pytest.raises(InvalidArgument):
        regions.register("r", key, 0, SIZE + 1)
    assert regions.status() == []


@pytest.fixture
def few_files() -> Iterator[int]:
    """Let this process open as few files as a shell does."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    yield 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_regions_that_nobody_unregisters_leave_descriptors_for_all_else(
    key: str, tmp_path: Path, few_files: int
) -> None:
    had = len(os.listdir("/proc/self/fd"))
    regions, other = regions_of(tmp_path), regions_of(tmp_path)
    for number in range(few_files // 4):
        regions.register(f"r{number}", key, 0, SIZE)
    with pytest.raises(InvalidArgument, match="more than 256 shared memory regions on this node: unregister"):
        regions.register("one more", key, 0, SIZE)
    assert other.registered
    regions.unregister("r7")
    regions.register("one more", key, 0, SIZE)
    taken = len(os.listdir("/proc/self/fd")) - had
    assert taken < few_files // 4 * 2 + few_files // 16, "two processes have them here"
