"""How large the files become that hold what models write to their standard streams."""

from pathlib import Path

from tests.e2e.rays_dashboards import session_folder
from tests.serving import Server, environment, tensor, wait_until

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
"""
WRITES = """
import os
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for number in range(2000):
            for stream in (1, 2):  # as code in C does
                os.write(stream, f"{number} {'x' * 200}\\n".encode())
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(each, "X").as_numpy())])
            for each in requests
        ]
"""
MAX_BYTES, KEPT = 50_000, 2


def test_what_models_write_is_put_aside_and_the_oldest_removed(tmp_path: Path) -> None:
    """In a replica of its own and in a process of its own, as the user's environment says."""
    for name, config in {"alone": CONFIG, "apart": CONFIG + "instance_group { count: 2 }"}.items():
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1/model.py").write_text(WRITES)
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
    env = environment(RAY_ROTATION_MAX_BYTES=str(MAX_BYTES), RAY_ROTATION_BACKUP_COUNT=str(KEPT))
    server = Server(tmp_path / "models", tmp_path / "log", "--num-cpus", "4", "--no-dashboard", env=env)
    try:
        server.wait_ready()
        logs = session_folder(server) / "logs"
        for name in ("alone", "apart"):
            assert server.infer(name, tensor("X", "INT32", [1], [1])).status == 200

        def last_lines() -> int:
            return sum("1999" in each.read_text() for each in logs.glob("worker-*.[oe]??"))

        wait_until(lambda: last_lines() == 4, "what either has written last, to either stream")
        for stream in ("out", "err"):
            files = list(logs.glob(f"worker-*.{stream}*"))
            assert max(each.stat().st_size for each in files) <= MAX_BYTES
            assert len([each for each in files if each.name.endswith(f".{stream}.{KEPT}")]) == 2
            assert not [each for each in files if each.name.endswith(f".{stream}.{KEPT + 1}")]
        server.stop()
    finally:
        server.kill()


def test_a_server_says_when_its_user_does_not(server: Server) -> None:
    raylets = [
        each for each in server.descendants() if any(part.startswith("--session-dir=") for part in each.cmdline())
    ]
    told = raylets[0].environ()
    assert (told["RAY_ROTATION_MAX_BYTES"], told["RAY_ROTATION_BACKUP_COUNT"]) == (str(64 << 20), "3")
