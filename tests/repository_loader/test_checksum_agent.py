import hashlib
from pathlib import Path

import pytest

from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.repository_loader.repositories import PYTHON_MODEL, TENSORS, python_model, write

MD5 = hashlib.md5(PYTHON_MODEL.encode(), usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(PYTHON_MODEL.encode()).hexdigest()


@pytest.mark.parametrize(
    ("key", "digest", "reason"),
    [
        ("MD5:1/model.py", MD5, None),
        ("MD5:1/model.py", MD5.upper(), None),
        ("SHA256:1/model.py", SHA256, None),
        ("MD5:1/model.py", SHA256, "file '1/model.py' has another MD5 digest"),
        ("MD5:2/model.py", MD5, "file '2/model.py' cannot be read: No such file or directory"),
        ("MD5:../n/model.py", MD5, "file '../n/model.py' is outside the model's folder"),
        ("CRC:1/model.py", MD5, "'CRC:1/model.py' is not MD5:<file> or SHA256:<file>"),
    ],
)
def test_compares_digests(tmp_path: Path, key: str, digest: str, reason: str | None) -> None:
    agents = f'agents {{ name: "checksum" parameters {{ key: "{key}" value: "{digest}" }} }}'
    write(tmp_path, python_model("m", f"{TENSORS} model_repository_agents {{ {agents} }}"))
    model = load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"]
    assert model.failure == (reason and f"checksum of model 'm': {reason}")
