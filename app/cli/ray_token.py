"""The token that closes the local Ray to other users of the machine.

Left alone, `ray.init` writes a token to `~/.ray/auth_token`. From then on the user's own `ray start` turns
authentication on, and `serve deploy` is refused. So the token of Eagleray's local clusters lies in a folder of its own.
"""

import os
import secrets
from pathlib import Path

_CHOICES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def own_token_path() -> Path:
    """Return the file of the token that Eagleray makes."""
    return Path.home() / ".eagleray" / "ray_auth_token"


def rays_token_path() -> Path:
    """Return the file that Ray reads when the environment names none."""
    return Path.home() / ".ray" / "auth_token"


def has_rays_token() -> bool:
    """Whether that file has one for this user, who may have no home folder, or may not read in it."""
    try:
        return bool(rays_token_path().read_bytes().strip())
    except (OSError, RuntimeError):
        return False


def choose_token() -> None:
    """Set the environment so that a local Ray is closed by a token; what the user has chosen stands.

    Call it before Ray is imported. Where there is no home folder that can be written, or its token cannot be read, as
    that of another user, the token lives in the environment alone.
    """
    if any(os.environ.get(name) for name in _CHOICES) or has_rays_token():
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    try:
        path = own_token_path()
        _write_once(path)
        usable = bool(path.read_bytes().strip())
    except (OSError, RuntimeError):
        usable = False
    if usable:
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
    else:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def current_token() -> str:
    """Return the token of the local Ray, empty when it has none."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return ""
    given = os.environ.get("RAY_AUTH_TOKEN")
    if given:
        return given
    try:
        return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or rays_token_path()).read_text().strip()
    except (OSError, RuntimeError):
        return ""


def _write_once(path: Path) -> None:
    """Leave a token in the file; of several servers that start at once, one writes it."""
    if path.is_file():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")  # containers that share a home share process numbers
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink(missing_ok=True)
