"""The folder that holds what the benchmarks need: a real Triton, load generators, models and request bodies."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

TRITON_PACKAGES = ("nvidia-pytriton==0.7.0", "onnxruntime>=1.23")
"""The wheel carries the server binary of Triton 2.51 with the Python backend; the models run ONNX Runtime in it."""

DEBIAN_PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client"}
"""Which Debian package each load generator is in."""


class PreparationError(Exception):
    """Something the benchmarks need is missing; the message says how to get it."""


@dataclass(frozen=True)
class Home:
    """Paths in the folder. `$EAGLERAY_BENCH_HOME` moves it."""

    path: Path

    @classmethod
    def from_environment(cls) -> "Home":
        chosen = os.environ.get("EAGLERAY_BENCH_HOME")
        return cls(Path(chosen) if chosen else Path.home() / ".cache/eagleray-benchmarks")

    @property
    def models(self) -> Path:
        return self.path / "model_repo"

    @property
    def bodies(self) -> Path:
        return self.path / "bodies"

    @property
    def logs(self) -> Path:
        return self.path / "log"

    @property
    def triton_bin(self) -> Path:
        """The `bin` folder of the virtual environment that Triton's Python backend runs in."""
        return self.path / "triton/bin"

    @cached_property
    def triton_site_packages(self) -> Path:
        command = [str(self.triton_bin / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())

    @property
    def triton_server(self) -> Path:
        return self.triton_site_packages / "pytriton/tritonserver"


def prepare(home: Home, tools: set[str]) -> None:
    """Install what is missing: Triton from packages, the named load generators from Debian."""
    home.path.mkdir(parents=True, exist_ok=True)
    install_load_generators({tool for tool in tools if shutil.which(tool) is None})
    if not (home.triton_bin / "python").exists():
        install_triton(home)


def install_load_generators(missing: set[str]) -> None:
    if not missing:
        return
    packages = sorted(DEBIAN_PACKAGES[tool] for tool in missing)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise PreparationError(
            f"{' and '.join(sorted(missing))} not found: install the packages {' '.join(packages)} "
            "(on Debian and Ubuntu: apt-get install, as root)"
        )
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", *packages], check=True)


def install_triton(home: Home) -> None:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise PreparationError("Triton comes as a package for Linux on x86-64 only")
    print(f"installing Triton into {home.path / 'triton'} ...", file=sys.stderr)
    partial = home.path / "triton.partial"
    subprocess.run([sys.executable, "-m", "venv", "--clear", partial], check=True)
    try:
        subprocess.run([partial / "bin/python", "-m", "pip", "install", "-q", *TRITON_PACKAGES], check=True)
    except subprocess.CalledProcessError as error:
        raise PreparationError(f"pip could not install {' '.join(TRITON_PACKAGES)}") from error
    partial.rename(home.path / "triton")

    # The wheel keeps a stub process for each Python version aside; the backend wants the one that fits.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = home.triton_server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        shutil.rmtree(home.path / "triton")
        raise PreparationError(f"the Triton package has no Python backend for Python {version}")
    shutil.copy2(stub, home.triton_server / "backends/python")
