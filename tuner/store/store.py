"""The store: all stored data about experiments, by subject.

Any process may create experiments and add commands. Only an experiment's driver may write the rest. The driver holds the
*epoch*: `drivers.claim` starts a new one, and from then on every `drivers.commit` under an older epoch raises LostLease and
writes nothing. Log entries never change, except that a decision changes once, from pending to done or superseded.

Every method may be called from any thread. Errors are `StoreError`s. An error that is also `Retryable` means that the database
was locked or the connection was lost. Then nothing was written, unless the connection broke during COMMIT, in which case
everything may have been written. Repeating the same call is harmless.
"""

from __future__ import annotations

from tuner.store.changes import ChangeLog
from tuner.store.code import Code
from tuner.store.commands import Commands
from tuner.store.drivers import Drivers
from tuner.store.experiments import Experiments
from tuner.store.log import Log
from tuner.store.output.logs import Logs
from tuner.store.output.ranks import Ranks
from tuner.store.series.metrics import Metrics
from tuner.store.service.access import Access
from tuner.store.service.projects import Projects
from tuner.store.service.uses import Uses, name_in
from tuner.store.service.webhooks import Webhooks
from tuner.store.sql.connect import Synchronous, connect
from tuner.store.sql.database import Database
from tuner.store.trials import Trials


class Store:
    """One database. Each attribute has the methods for one kind of data, so a caller can be given access to one kind only.

    experiments: create, find and list them.
    trials: find, sort and list trials, their segments and checkpoints.
    metrics: names and curves.
    log: decisions and events, as people read them.
    changes: the rows that changed after an entry of the log.
    ranks: the resource usage of ranks.
    logs: the output of ranks.
    code: training functions that are pickled by value.
    bundles: when code bundles were last used, by SHA-256.
    packages: when packages of local directories were last used, by URI.
    commands: users' requests to drivers.
    drivers: leases, and the log as a driver reads and writes it.
    access: tokens and the audit trail.
    projects: the settings of projects.
    webhooks: URLs that events are sent to, and their deliveries.
    project: the project to which the store is limited, or None.
    """

    def __init__(self, database: Database, project: str | None = None) -> None:
        self._database = database
        self.project = project
        self.experiments = Experiments(database, project)
        self.trials = Trials(database, project)
        self.metrics = Metrics(database)
        self.log = Log(database)
        self.changes = ChangeLog(database)
        self.ranks = Ranks(database, project)
        self.logs = Logs(database, project)
        self.code = Code(database)
        self.bundles = Uses(database, "bundle", "sha256", "bundles", lambda sha256: f"{sha256}.zip")
        self.packages = Uses(database, "package", "uri", "packages", name_in)
        self.commands = Commands(database)
        self.drivers = Drivers(database)
        self.access = Access(database, project)
        self.projects = Projects(database, project)
        self.webhooks = Webhooks(database, project)

    @classmethod
    def open(cls, url: str, *, synchronous: Synchronous = "NORMAL") -> Store:
        """Open a database. An SQLite file that does not exist is created; call `migrate` to create the tables."""
        return cls(Database(connect(url, synchronous)))

    def within(self, project: str | None) -> Store:
        """Return this store, limited to a project. The limited store does not find public ids and names of other projects.

        Queries by internal id are not filtered, since a caller gets an internal id only from a record of this project.
        """
        return self if project is None else Store(self._database, project)

    @property
    def backend(self) -> str:
        """The kind of database: "sqlite" or "postgresql"."""
        return self._database.backend

    def migrate(self, *, patient: bool = False) -> None:
        """Migrate the tables to this version of tuner. patient: wait a while for a server that cannot be reached yet."""
        self._database.migrate(patient=patient)

    def shrink(self) -> None:
        """Release the disk space of deleted rows, if the database is an SQLite file."""
        self._database.shrink()

    def check(self) -> None:
        """Raise StoreError unless the database responds and has the tables of this version."""
        self._database.check()

    def check_write(self) -> None:
        """Try a write that changes nothing. Raise StoreError if it fails, for instance because the disk is full."""
        with self._database.write() as cursor:
            cursor.execute("UPDATE alembic_version SET version_num = version_num")

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
