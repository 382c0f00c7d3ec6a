"""Every error that this package raises on purpose.

    TunerError
    ├── SpecError                 a spec, a space or an argument is wrong; `.errors` lists (pointer, message)
    │   └── EntrypointError       the trainable cannot be imported, unpickled or called
    ├── StoreError
    │   ├── NotFound              the experiment, trial or checkpoint does not exist
    │   ├── Conflict              the request conflicts with the current state
    │   │   ├── Stale             the object has been changed since the caller read it
    │   │   └── Gone              the experiment, or an agent's lease, has ended for good
    │   ├── NewerLog              another version has written something of an experiment that this one cannot read
    │   └── LostLease             another driver has taken over the experiment: stop writing at once
    ├── IllegalTransition         a state change that the table in `domain.states` does not allow
    ├── RestartError              a restart would change the decisions of a simulated search
    ├── TrialError                a trial cannot continue; `.failure` is a `domain.events.Failure`
    ├── PlacementError            the cluster does not have the resources, or did not free them in time
    │   └── ClusterUnreachable    Ray could not be started here, or does not answer at the address
    ├── DriverSilent              no driver host answers at the moment
    ├── NewerHost                 a service of a newer version drives the experiments of this database
    ├── CheckerBusy               too many entrypoints are being imported at the moment
    ├── ServiceError              a service refused a request, or failed; `.status` is the HTTP status
    │   ├── NotAllowed            the token is missing or wrong, or its role does not allow the request
    │   └── ServiceUnreachable    no service answers at the address
    ├── ReportsLost               reports of a trial did not reach the driver
    ├── WrongArgument             a function was called with an argument that it cannot use
    ├── OutsideTrial              a function that works only inside a trial was called elsewhere
    ├── NotHere                   a trial called a Ray function that does not work in it
    ├── MissingPackage            a package that this call needs is not installed
    ├── RolloutFailed             the new version of a served model did not come up
    └── CheckpointError           a checkpoint is missing, incomplete, or cannot be written
        ├── CheckpointLost        the checkpoint is missing or incomplete, or was on the disk of a node that is gone
        └── CheckpointUnreachable the node or storage that has the checkpoint cannot be reached now; retryable

`Retryable` marks errors after which another attempt may succeed: a lost node, a lost connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WHAT_TO_DO = "What to do: "
"""The beginning of the last line of a traceback of each error."""


def what_to_do(section: str) -> str:
    """Return the line "What to do: ..." with the command that prints a section of docs/troubleshooting.md."""
    return f"{WHAT_TO_DO}tuner docs {section}"


def text_of(said: object) -> str:
    """Return the text of an error, or of a note on one. If its `__str__` raises, return a text that says so.

    Unpaired surrogates, such as those of a file name that is not UTF-8, are escaped, as in the `repr` of the name.
    """
    try:
        return str(said).encode("utf-8", "backslashreplace").decode("utf-8")
    except Exception as error:
        return f"<{type(said).__name__}.__str__ raised {type(error).__name__}>"


class TunerError(Exception):
    """Base of all errors raised on purpose. Each error has a note that names the section of the docs about it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        described = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        self.add_note(what_to_do(described.__name__))


class Retryable(Exception):
    """Mixin for errors after which another attempt may succeed."""


class SpecError(TunerError, ValueError):
    """Something in a spec is wrong.

    `errors` holds (pointer, message) pairs; a pointer is a JSON pointer into the spec, as in
    ``/space/lr/lower``, and "" for the whole spec.
    """

    def __init__(self, errors: Sequence[tuple[str, str]] | str, pointer: str = "") -> None:
        if isinstance(errors, str):
            errors = [(pointer, errors)]
        self.errors = list(errors)
        super().__init__("; ".join(f"{_dotted(p)}: {m}" if p else m for p, m in self.errors))


class ErrorCollector:
    """Collects the SpecErrors of several checks, and raises them as one.

    Put each check into a block ``with mistakes:``, which swallows its SpecError. ``mistakes.check()`` raises one error with
    all mistakes.
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._first: SpecError | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, SpecError):
            return False
        self._first = self._first or error
        self.found += [one for one in error.errors if one not in self.found]
        return True

    def check(self) -> None:
        """Raise one SpecError with all collected errors. Do nothing if there are none."""
        if self._first is not None and self._first.errors == self.found:
            raise self._first
        if self.found:
            raise SpecError(self.found) from self._first


class EntrypointError(SpecError):
    """The trainable cannot be imported, unpickled or called."""


class StoreError(TunerError):
    """The database refused a request, or does not have the requested object."""


class NewerLog(StoreError):
    """Another version has written an entry of an experiment's log, or an option of its spec, and this version cannot read it."""


def unreadable(what: str, kind: str) -> NewerLog:
    """Return the error for an entry of an experiment's log that this version of tuner does not know."""
    return NewerLog(
        f"the experiment's log has an entry ({what} {kind!r}) that this version of tuner cannot read, since another version has "
        "written it. Nothing is lost: use a version that knows it to continue the experiment"
    )


def unknown_options(names: Sequence[str]) -> str:
    """Return a sentence that says that a spec has options that this version of tuner does not know, or values of theirs."""
    return (
        f"the experiment's spec has something that this version of tuner does not know ({', '.join(names)}), since another "
        "version has written it. Nothing is lost: use a version that knows it to continue, copy or replay the experiment"
    )


def unknown_state(state: str) -> str:
    """Return a sentence that says that an experiment is in a state that this version of tuner does not know."""
    return (
        f"the experiment is in a state that this version of tuner does not know ({state}), since another version has written it. "
        "Nothing is lost: use a version that knows it to continue the experiment"
    )


def damaged_columns(names: Sequence[str]) -> str:
    """Return a sentence that says that columns of an experiment's row do not have the JSON that belongs there."""
    return (
        f"this version of tuner cannot read {' and '.join(names)} in the experiment's row in the database: another version has "
        "written it, or the row is damaged. A backup of the database may still have what was there before the damage"
    )


class NotFound(StoreError, KeyError):
    """The experiment, trial or checkpoint does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "not found"


class Conflict(StoreError):
    """The request conflicts with the current state."""


class Stale(Conflict):
    """The object that the request would change has been changed since the caller read it."""


class Gone(Conflict):
    """The experiment that the request names, or the lease that an agent holds, has ended for good."""


REFUSED = (SpecError, NotFound, Conflict)
"""Errors about what one request names or asks for. Requests about other experiments may still succeed."""


class LostLease(StoreError):
    """Another driver has taken over the experiment, so the driver that gets this error must stop writing."""


class IllegalTransition(TunerError):
    """The table in `domain.states` does not allow this state change."""


class RestartError(TunerError):
    """A restart of the driver would change the decisions of a search, as `tuner.simulate(check_restarts=True)` has found."""


class TrialError(TunerError):
    """A trial cannot continue. `failure` says which rank, on which node, and why."""

    def __init__(self, message: str, failure: Any = None) -> None:
        super().__init__(message)
        self.failure = failure


class PlacementError(TunerError):
    """The cluster does not have the requested resources, or they did not become free in time."""


class ClusterUnreachable(PlacementError):
    """Ray could not be started on this machine, or does not answer at the given address."""


class DriverSilent(TunerError, Retryable):
    """No driver host that this process can reach answers at the moment."""


class NewerHost(TunerError):
    """A service of a newer version drives the experiments of this database."""


class CheckerBusy(TunerError, Retryable):
    """Too many entrypoints are being imported at the moment, or the service is shutting down."""


class ServiceError(TunerError):
    """A service refused a request, or failed. `status` is the HTTP status; None if there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NotAllowed(ServiceError):
    """The token is missing, wrong, expired or revoked, or its role does not allow the request."""


class ServiceUnreachable(ServiceError, Retryable):
    """No service answers at the address."""


class ReportsLost(TunerError):
    """Reports of a trial did not reach the driver, because the driver has ended or was unreachable for too long."""


class OutsideTrial(TunerError, RuntimeError):
    """A function that works only inside a trial was called elsewhere, or in a child process of a trial."""


class WrongArgument(TunerError, TypeError, ValueError):
    """A function was called with an argument that it cannot use, such as a metric that is not a number.

    It is also raised if the user's function has returned something that cannot be used as its metrics. Arguments that are
    checked with the spec raise a `SpecError`, which lists all mistakes.
    """


class NotHere(TunerError, RuntimeError):
    """User code called a Ray function that does not work in a trial of `tuner`."""


class MissingPackage(TunerError, ImportError):
    """A package that this call needs is not installed. The message has the command that installs it."""


class RolloutFailed(TunerError):
    """The new version of a served model did not come up. The old one still answers."""


class CheckpointError(TunerError):
    """A checkpoint is missing, incomplete, or cannot be written."""


class CheckpointLost(CheckpointError):
    """A checkpoint is missing or incomplete. If it was on the disk of a node that is gone, `node` is that node; else None."""

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


class CheckpointUnreachable(CheckpointError, Retryable):
    """The node or the storage that has the checkpoint cannot be reached at the moment."""


def _dotted(pointer: str) -> str:
    return pointer.lstrip("/").replace("/", ".").replace("~1", "/").replace("~0", "~")
