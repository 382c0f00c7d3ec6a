"""The settings of this installation. No other module reads the environment. `docs/configuration.md` lists all settings."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from tuner.domain.experiment import PROJECT
from tuner.errors import SpecError
from tuner.names import nearest
from tuner.trials.checkpoints.storage import absolute, literal, secret_in, unknown_scheme
from tuner.trials.groups.cluster.growth import NodeType


def _setting(variable: str, about: str, default: Any, *, shown: bool = True) -> Any:
    return field(metadata={"variable": variable, "about": about}, default=default, repr=shown)


class MisspelledSetting(UserWarning):
    """The environment has a variable that looks like a misspelled setting. It is ignored."""


@dataclass(frozen=True, slots=True)
class OidcRule:
    """The role of the members of a group of the OpenID Connect provider. Everybody belongs to the group ``*``."""

    group: str
    role: Literal["viewer", "editor", "admin"]
    project: str | None = None  # the only project that the members may see; None: all projects


@dataclass(frozen=True, slots=True)
class Quota:
    """The amount of a resource that all experiments of a project may hold together. The project ``*`` stands for all others."""

    project: str
    resource: str
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings as read from the environment. Command-line options override them (by `dataclasses.replace`)."""

    home: Path = _setting(  # noqa: RUF009
        "TUNER_HOME", "the directory of the database, checkpoints and logs", default=Path("~/.tuner")
    )
    # `repr` leaves the URL out, because it may contain a password.
    database_url: str = _setting("TUNER_DATABASE_URL", "SQLite file or PostgreSQL server", default="", shown=False)
    storage: str = _setting("TUNER_STORAGE", "where checkpoints are stored: a path or any pyarrow.fs URI", default="")
    durability: Literal["NORMAL", "FULL"] = _setting(
        "TUNER_DURABILITY",
        "NORMAL survives `kill -9`; FULL also survives a power loss (SQLite's `synchronous`, and fsync of local checkpoints)",
        default="NORMAL",
    )
    ray_address: str | None = _setting(
        "RAY_ADDRESS",
        "the address of the Ray cluster to use; if it is unset, trials that need Ray run on a private cluster",
        default=None,
    )
    host: str = _setting("TUNER_HOST", "the address on which `tuner serve` listens", default="127.0.0.1")
    port: int = _setting("TUNER_PORT", "the port on which `tuner serve` listens", default=8000)
    allowed_hosts: tuple[str, ...] = _setting(
        "TUNER_ALLOWED_HOSTS",
        "comma-separated host names, in addition to localhost, that are accepted in the Host header of a request",
        default=(),
    )
    auth: Literal["auto", "on", "off"] = _setting(
        "TUNER_AUTH",
        "whether requests to the API need a token; on: yes; auto: only if the service listens on an address other "
        "than loopback, or TUNER_TRUSTED_PROXIES or TUNER_OIDC_ISSUER is set; off: no, which is allowed on loopback only, for a "
        "service behind a proxy that controls access",
        default="auto",
    )
    trusted_proxies: tuple[str, ...] = _setting(
        "TUNER_TRUSTED_PROXIES",
        "addresses or networks of proxies, separated by commas, whose X-Forwarded-For and X-Forwarded-Proto headers are trusted",
        default=(),
    )
    root_path: str = _setting(
        "TUNER_ROOT_PATH", "the path under which a proxy serves the service, such as /tuner", default=""
    )
    oidc_issuer: str | None = _setting(
        "TUNER_OIDC_ISSUER",
        "the OpenID Connect provider with which people sign in, such as https://sso.example.com/realms/ml; needs "
        "the extra `oidc`",
        default=None,
    )
    oidc_client_id: str | None = _setting(
        "TUNER_OIDC_CLIENT_ID", "the service's client id at the OpenID Connect provider", default=None
    )
    oidc_client_secret: str | None = _setting(
        "TUNER_OIDC_CLIENT_SECRET",
        "the service's client secret at the OpenID Connect provider; unset for a public client",
        default=None,
        shown=False,
    )
    oidc_roles: tuple[OidcRule, ...] = _setting(
        "TUNER_OIDC_ROLES",
        "the role of each group of the OpenID Connect provider, such as `ml-admins=admin, vision=editor@vision, "
        '*=viewer`; a group with a comma stands in double quotes, as in `"CN=ml,OU=groups"=editor`; @ limits '
        "the role to a project, and everybody belongs to the group *, which comes last; a person has the role of the first "
        "group in the list that they belong to",
        default=(),
    )
    oidc_groups_claim: str = _setting(
        "TUNER_OIDC_GROUPS_CLAIM", "the claim of the ID token that lists a person's groups", default="groups"
    )
    metrics: Literal["auto", "open", "off"] = _setting(
        "TUNER_METRICS",
        "who may read GET /metrics; auto: everybody who may read the API; open: everybody who can reach the service; off: nobody",
        default="auto",
    )
    audit_days: float = _setting(
        "TUNER_AUDIT_DAYS",
        "an entry of the audit trail is deleted when it is this many days old; 0: never",
        default=365.0,
    )
    webhook_private: bool = _setting(
        "TUNER_WEBHOOK_PRIVATE",
        "1: webhooks may also be sent to private and loopback addresses, but never to link-local ones or cloud "
        "metadata services; 0: only to public ones",
        default=False,
    )
    lease_s: float = _setting(
        "TUNER_LEASE_S", "if a driver does not renew its lease for this many seconds, it may be replaced", default=30.0
    )
    outage_s: float = _setting(
        "TUNER_OUTAGE_S",
        "if the database is unreachable or full for this many seconds, training stops, and resumes from the last "
        "checkpoints once the database is back; a shorter outage does not stop training",
        default=3600.0,
    )
    usage_every_s: float = _setting(
        "TUNER_USAGE_EVERY_S",
        "seconds between two samples of the CPU, memory and GPU usage of each rank; 0: no samples",
        default=10.0,
    )
    reserve_after_s: float = _setting(
        "TUNER_RESERVE_AFTER_S",
        "a worker group that has waited for resources for this many seconds is placed before all later ones",
        default=30.0,
    )
    node_types: tuple[NodeType, ...] = _setting(
        "TUNER_NODE_TYPES",
        "the nodes that an autoscaler may add to the Ray cluster, such as 8xCPU:16+GPU:4,2xCPU:64: up to 8 nodes with 16 CPUs "
        "and 4 GPUs each, and up to 2 with 64 CPUs",
        default=(),
    )
    quotas: tuple[Quota, ...] = _setting(
        "TUNER_QUOTAS",
        "how much of a resource all experiments of a project may hold together, such as vision=GPU:4,vision=CPU:32,*=GPU:2; the "
        "project * stands for all other projects",
        default=(),
    )
    preempt_after_s: float = _setting(
        "TUNER_PREEMPT_AFTER_S",
        "a trial runs for at least this many seconds before it is paused to make room for another experiment",
        default=20.0,
    )
    log_bytes: int = _setting(
        "TUNER_LOG_BYTES",
        "how many bytes of a rank's output in one segment the database keeps (the first quarter and the last "
        "three quarters of this size); 0: none",
        default=4 << 20,
    )
    address: str | None = _setting(
        "TUNER_ADDRESS",
        "the service that `tuner.connect` and the command line use, such as http://host:8000; if it is unset, "
        "the command line uses the database of this home",
        default=None,
    )
    token: str | None = _setting(
        "TUNER_TOKEN",
        "the token that `tuner.connect` and the command line send to the service at TUNER_ADDRESS",
        default=None,
        shown=False,
    )
    log_days: float = _setting(
        "TUNER_LOG_DAYS",
        "the output of an experiment's ranks is deleted this many days after the experiment's end; 0: never",
        default=0.0,
    )
    point_days: float = _setting(
        "TUNER_POINT_DAYS",
        "most points of an experiment's long curves are deleted from the database this many days after the experiment's end; the "
        "experiment can then no longer be continued or replayed; 0: never",
        default=0.0,
    )
    bundle_days: float = _setting(
        "TUNER_BUNDLE_DAYS",
        "a code bundle that no experiment refers to is deleted from TUNER_STORAGE this many days after its last use; 0: never",
        default=0.0,
    )
    log_level: str = _setting("TUNER_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR", default="INFO")
    log_format: Literal["text", "json"] = _setting(
        "TUNER_LOG_FORMAT", "the format of the service's log: text, or json for one object per line", default="text"
    )

    traces: str | None = _setting(
        "TUNER_TRACES",
        "an OpenTelemetry collector that accepts OTLP over HTTP, such as http://localhost:4318; unset: no traces; "
        "needs the extra `otel`",
        default=None,
    )

    def __post_init__(self) -> None:
        try:
            home = self.home.expanduser().absolute()
        except RuntimeError as error:  # there is no such user, or this one has neither HOME nor an entry in /etc/passwd
            raise SpecError(
                f"expected a folder, got {str(self.home)!r}: {error}; set TUNER_HOME to a folder where this user may write",
                "TUNER_HOME",
            ) from error
        except FileNotFoundError as error:
            raise _nowhere(self.home, "TUNER_HOME") from error
        object.__setattr__(self, "home", home)
        if not self.database_url:
            # In the URL of a database, options follow a question mark, and %20 may stand for a space.
            if "?" in str(home) or unquote(str(home)) != str(home):
                raise SpecError(
                    f"the path of the SQLite database can have neither a question mark nor a percent code, as in {str(home)!r}; "
                    "choose another folder, or set TUNER_DATABASE_URL",
                    "TUNER_HOME",
                )
            object.__setattr__(self, "database_url", f"sqlite:///{home / 'tuner.db'}")
        if self.oidc_issuer is not None and not (self.oidc_client_id and self.oidc_roles):
            raise SpecError("needs TUNER_OIDC_CLIENT_ID and TUNER_OIDC_ROLES", "TUNER_OIDC_ISSUER")
        try:
            storage = absolute(self.storage or literal(str(home / "checkpoints")))
        except FileNotFoundError as error:
            raise _nowhere(self.storage, "TUNER_STORAGE") from error
        object.__setattr__(self, "storage", storage)

    def make_home(self) -> None:
        """Create the home unless it exists. Raise SpecError if it cannot be created."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or str(error)
            raise SpecError(
                f"the folder {str(self.home)!r} cannot be created: {why}; set TUNER_HOME to a folder where this user may write",
                "TUNER_HOME",
            ) from error

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from the environment, where an empty variable counts as unset.

        Warns of each variable whose name is probably a misspelled setting (MisspelledSetting).

        Raises:
            SpecError: variables have invalid values. The error lists all of them.
        """
        environ = os.environ if environ is None else environ
        for message in misspelled(environ):
            warnings.warn(message, MisspelledSetting, stacklevel=2)
        values: dict[str, Any] = {}
        errors: list[tuple[str, str]] = []
        for setting in fields(cls):
            variable = setting.metadata["variable"]
            text = environ.get(variable, "").strip()
            if not text:
                continue
            try:
                values[setting.name] = _READERS.get(setting.name, str)(text)
            except ValueError as error:
                errors.append((variable, str(error)))
        if errors:
            raise SpecError(errors)
        return cls(**values)


def _nowhere(path: Path | str, variable: str) -> SpecError:
    """Return the error for a relative path if the working directory has been deleted."""
    return SpecError(
        f"expected a path that is not relative, as {str(path)!r} is, since the current folder has been deleted: change to "
        "another folder, or set an absolute path",
        variable,
    )


def misspelled(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that is not a setting but whose name resembles one, such as TUNER_LEASES_S."""
    known = {setting.metadata["variable"].removeprefix("TUNER_") for setting in fields(Settings)}
    given = (name.removeprefix("TUNER_") for name in sorted(environ) if name.startswith("TUNER_"))
    meant = ((name, nearest(name, known)) for name in given if name not in known)
    return [
        f"the environment variable TUNER_{name} is ignored, since it is not a setting; did you mean TUNER_{setting}?"
        for name, setting in meant
        if setting is not None
    ]


def _storage(text: str) -> str:
    if (wrong := unknown_scheme(text) or secret_in(text)) is not None:
        raise ValueError(wrong)
    return text


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise ValueError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    if _number(text) <= 0:
        raise ValueError(f"expected a number of seconds above 0, got {text!r}")
    return _number(text)


def _seconds_or_none(text: str) -> float:
    if _number(text) < 0:
        raise ValueError(f"expected a number of seconds, or 0, got {text!r}")
    return _number(text)


def _bytes(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a number of bytes, or 0, got {text!r}")
    return int(text)


def _number(text: str) -> float:
    """Return the number in the text, or -1 if the text is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return -1.0
    return number if math.isfinite(number) else -1.0


def _one_of(*names: str) -> Any:
    def read(text: str) -> str:
        if text.upper() not in names:
            raise ValueError(f"expected {' or '.join(names)}, got {text!r}")
        return text.upper()

    return read


def _lower(*names: str) -> Any:
    def read(text: str) -> str:
        return str(_one_of(*(name.upper() for name in names))(text)).lower()

    return read


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"expected 0 or 1, got {text!r}")
    return text == "1"


def _days(text: str) -> float:
    if _number(text) < 0:
        raise ValueError(f"expected a number of days, or 0, got {text!r}")
    return _number(text)


def _networks(text: str) -> tuple[str, ...]:
    found = _names(text)
    for one in found:
        try:
            ipaddress.ip_network(one)
        except ValueError:
            raise ValueError(f"expected addresses or networks such as 10.0.0.0/8, got {one!r}") from None
    return found


def _root_path(text: str) -> str:
    path = "/" + text.strip("/")
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path.rstrip("/")):
        raise ValueError(f"expected a path such as /tuner, got {text!r}")
    return path.rstrip("/")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().lower() for name in text.split(",") if name.strip())


def _url(text: str) -> str:
    if not re.fullmatch(r"https://\S+|http://(localhost|127\.0\.0\.1)(:\d+)?(/\S*)?", text):
        raise ValueError(
            f"expected an https:// URL without spaces (http:// only for localhost or 127.0.0.1), got {text!r}"
        )
    return text


def _rules(text: str) -> tuple[OidcRule, ...]:
    found: list[OidcRule] = []
    quoted, plain = r'"(?:[^"]|"")+"', r'[^"].*'
    for part in filter(None, (part.strip() for part in re.findall(rf"\s*({quoted}[^,]*|[^,]+)", text))):
        given = re.fullmatch(rf"({quoted}\s*|{plain})=(viewer|editor|admin)(?:@({PROJECT.strip('^$')}))?", part)
        if given is None:
            raise ValueError(
                "expected GROUP=ROLE or GROUP=ROLE@PROJECT, with the role viewer, editor or admin, and in double quotes if "
                f"GROUP has a comma, got {part!r}"
            )
        group = given[1].strip()
        if re.fullmatch(quoted, group):
            group = group[1:-1].replace('""', '"')
        if any(rule.group == "*" for rule in found):
            raise ValueError(f"{part!r} has no effect, since everybody belongs to the group * before it: put * last")
        found.append(OidcRule(group, given[2], given[3]))  # type: ignore[arg-type]
    return tuple(found)


def _quotas(text: str) -> tuple[Quota, ...]:
    found: dict[tuple[str, str], Quota] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        # Names of resources may contain colons, as in accelerator_type:A100. The amount follows the last colon.
        given = re.fullmatch(rf"(\*|{PROJECT.strip('^$')})=([^:=\s][^=\s]*):([^:\s]+)", part)
        if given is None or _number(given[3]) < 0:
            raise ValueError(f"expected PROJECT=RESOURCE:AMOUNT, such as vision=GPU:4, got {part!r}")
        project, resource, amount = given.groups()
        if (project, resource) in found:
            raise ValueError(f"expected one quota per project and resource, got two for {project}={resource}")
        found[project, resource] = Quota(project, resource, _number(amount))
    return tuple(found.values())


def _node_types(text: str) -> tuple[NodeType, ...]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        given = re.fullmatch(r"(\d+)x(\S+)", part)
        amounts = [re.fullmatch(r"(\S+):([^:]+)", one) for one in given[2].split("+")] if given is not None else []
        resources = {one[1]: _number(one[2]) for one in amounts if one is not None}
        if given is None or len(resources) < len(amounts) or not all(amount > 0 for amount in resources.values()):
            raise ValueError(f"expected COUNTxRESOURCE:AMOUNT+RESOURCE:AMOUNT, such as 8xCPU:16+GPU:4, got {part!r}")
        found.append(NodeType(resources, int(given[1])))
    return tuple(found)


def _http(text: str) -> str:
    if not re.fullmatch(r"https?://\S+", text):
        raise ValueError(f"expected a URL that begins with http:// or https://, got {text!r}")
    return text


_READERS: Mapping[str, Any] = {
    "home": Path,
    "storage": _storage,
    "durability": _one_of("NORMAL", "FULL"),
    "port": _port,
    "auth": _lower("auto", "on", "off"),
    "metrics": _lower("auto", "open", "off"),
    "log_format": _lower("text", "json"),
    "trusted_proxies": _networks,
    "root_path": _root_path,
    "oidc_issuer": _url,
    "traces": _http,
    "oidc_roles": _rules,
    "node_types": _node_types,
    "quotas": _quotas,
    "audit_days": _days,
    "webhook_private": _flag,
    "log_days": _days,
    "point_days": _days,
    "bundle_days": _days,
    "allowed_hosts": _names,
    "lease_s": _seconds,
    "outage_s": _seconds_or_none,
    "usage_every_s": _seconds_or_none,
    "reserve_after_s": _seconds_or_none,
    "preempt_after_s": _seconds_or_none,
    "log_bytes": _bytes,
    "log_level": _one_of("DEBUG", "INFO", "WARNING", "ERROR"),
}
