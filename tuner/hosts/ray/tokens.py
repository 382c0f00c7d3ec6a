"""Ray's authentication tokens: for the Ray instances that are started here, and for clusters that this process connects to.

Ray writes a token to ~/.ray/auth_token when it starts with token authentication and finds none. From then on, every
`ray start --head` of the user would turn token authentication on by itself. So the Ray instances that this project starts get
a token of their own, which is not stored in the user's home directory.

This module does not import Ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from tuner.errors import ClusterUnreachable

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"

RAYLET = "ray._raylet"
NAMES = ("AuthenticationTokenLoader", "Config", "GcsClient")
"""The private names of `RAYLET` that this module uses."""

IMPATIENT = {"RAY_py_gcs_connect_timeout_s": "5", "RAY_gcs_rpc_server_connect_timeout_s": "1"}
"""Environment variables with which Ray gives up a silent cluster after a few seconds. By default, it tries for 40 s."""

_private: list[str] = []
"""The environment variables that `begin_private` has set."""
_silencing = threading.Lock()


def users_token() -> str | None:
    """Return a phrase that says where the user's token is; None if the user has none."""
    if os.environ.get(TOKEN):
        return TOKEN
    if path := os.environ.get(TOKEN_PATH):
        return f"{TOKEN_PATH}={path}" if os.path.isfile(path) else None
    return str(_default()) if os.path.isfile(_default()) else None  # also False if this user may not look


def begin_private() -> None:
    """Prepare this process for starting a Ray instance of its own, with token authentication.

    If the user has no token, make one for this instance. Call `end_private` when the instance has shut down.
    """
    end_private()
    if os.environ.get(MODE, "token").lower() != "token":
        return
    values = {MODE: "token"} if MODE not in os.environ else {}
    if users_token() is None:
        values[TOKEN] = secrets.token_hex(32)
    _private.extend(values)
    os.environ |= values
    _read_again()


def end_private() -> None:
    """Undo `begin_private`, and let Ray read the environment variables again."""
    for name in _private:
        os.environ.pop(name, None)
    _private.clear()
    _read_again()


@contextlib.contextmanager
def of_cluster(address: str, home: Path | None = None) -> Iterator[str | None]:
    """Use the user's token, if there is one, to connect to a cluster within a `with` block.

    Yield a phrase that says where the token is.

    In a process that only connects, Ray uses a token only if RAY_AUTH_MODE is "token". A user's token is not used for a cluster
    without authentication: this process would refuse the cluster's own requests, which have no token, and the cluster would take
    it for dead.

    Args:
        address: the cluster's address.
        home: the home of this user. If the head of its service has this address, the token of that head is used.
    """
    end_private()
    if MODE in os.environ:
        yield users_token() if os.environ[MODE].lower() == "token" else None
        return
    values: dict[str, str] = {}
    if home is not None and _is_own(address, home) and (own := token_file(home)).is_file():
        values, where = _of_file(own), str(own)
    elif (found := users_token()) is not None and not _is_open(address):
        values, where = {MODE: "token"}, found
    else:
        yield None
        return
    with _variables(values):
        yield where


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Let Ray read these environment variables. Remove them after the `with` block; Ray keeps what it has read."""
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    _read_again()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def token_file(home: Path) -> Path:
    """Return the file with the token of the Ray head that the service of this home starts."""
    return home / "ray_token"


def of_home(home: Path) -> dict[str, str]:
    """Return the environment variables for the Ray head of this home and for the processes that connect to it.

    If the home has no token yet, write a copy of the user's token, or else a new token, to the home's file. So the head keeps its
    token even if the user changes theirs.

    Raises:
        ClusterUnreachable: the file cannot be read or written.
    """
    own = token_file(home)
    if not own.is_file():
        try:
            home.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=home, encoding="utf-8") as file:  # only this user can read it
                file.write(_text_of_users_token() or secrets.token_hex(32))
                file.flush()
                with contextlib.suppress(FileExistsError):  # another process has just written one
                    os.link(file.name, own)
        except OSError as error:
            raise ClusterUnreachable(
                f"the token of Ray cannot be written to {own}: {error.strerror}; set TUNER_HOME to a folder where "
                "this user may write"
            ) from None
    return _of_file(own)


def _of_file(own: Path) -> dict[str, str]:
    """Return the environment variables for Ray to use the token of this file. Ray prefers RAY_AUTH_TOKEN, if that is set."""
    try:
        token = own.read_text(encoding="utf-8").strip()
    except OSError as error:  # such as one that `sudo tuner serve` has written
        raise ClusterUnreachable(
            f"the token of Ray cannot be read from {own}: {error.strerror}; give this user the files of its folder, or set "
            "TUNER_HOME to a folder of this user"
        ) from None
    return {MODE: "token", TOKEN_PATH: str(own), **({TOKEN: token} if TOKEN in os.environ else {})}


def _text_of_users_token() -> str | None:
    """Return the user's token; None if the user has none."""
    if text := os.environ.get(TOKEN):
        return text
    path = Path(os.environ.get(TOKEN_PATH) or _default())
    return path.read_text(encoding="utf-8").strip() or None if os.path.isfile(path) else None


def advice(where: str | None) -> str:
    """Return what to set if the cluster uses token authentication.

    where: the place of the token that was used, as a phrase; None if none was used.
    """
    told = "`ray get-auth-token` on the cluster's head prints it"
    if where is not None:
        return f"If it uses token authentication, the token in {where} may be that of another cluster; {told}"
    if os.environ.get(MODE, "").lower() == "disabled":
        return f"If it uses token authentication, do not set {MODE}=disabled"
    return (
        f"If it uses token authentication, set {TOKEN} to its token, or {TOKEN_PATH} to a file with the token; {told}"
    )


def _is_own(address: str, home: Path) -> bool:
    try:
        return (home / "ray_address").read_text(encoding="utf-8").strip() == address
    except OSError:
        return False


def _is_open(address: str) -> bool:
    """Return whether a cluster answers requests without a token; False if that is unknown."""
    raylet = sys.modules.get(RAYLET)
    if raylet is None or not hasattr(raylet, "GcsClient") or ":" not in address:  # such as "auto"
        return False
    try:
        with _variables(IMPATIENT), _silent():  # Ray prints a warning if it is refused
            raylet.GcsClient(address=address)
    except Exception:
        return False
    finally:
        _read_again()
    return True


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Drop what this process, including its C++ code, writes to its standard error within a `with` block."""
    with _silencing:  # else one thread would keep the /dev/null of another, and leave it in place forever
        kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _default() -> Path:
    return Path(os.path.expanduser("~/.ray/auth_token"))  # `Path.home` raises an error for a user without a home


def _read_again() -> None:
    """Make Ray, if it is loaded here, forget the token and the mode that it has read from the environment."""
    raylet = sys.modules.get(RAYLET)
    if raylet is not None and all(hasattr(raylet, name) for name in NAMES):
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        raylet.Config.initialize("")
