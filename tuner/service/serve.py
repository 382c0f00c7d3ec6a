"""Run the API in this process, next to a supervisor."""

from __future__ import annotations

import gc
import importlib
import signal
import threading
import time
from types import FrameType

from tuner import __version__
from tuner.errors import SpecError
from tuner.names import RAY_CLIENT, no_ray_client
from tuner.sdk.live.terminal import leave_lost_terminal
from tuner.service.early import Early
from tuner.service.supervisor import Supervisor
from tuner.service.tokens import about_tokens, check_tokens, with_auth
from tuner.service_url import announced, url_of
from tuner.settings import Settings
from tuner.telemetry import log_format, tracing
from tuner.usercode.folder import working_folder

SLOW_MODULES = ("tuner.search.optuna_samplers.study",)
"""Modules that requests may need and that take seconds to load, because they import Optuna."""

AFTERWARDS = "Ray and running searches continue: `tuner serve` shows them again, `tuner serve --stop` stops them."

LOAD_AFTER_S = 10.0
"""The maximum seconds to wait for the driver before `SLOW_MODULES` are loaded. The driver needs the CPU while it starts."""


def serve(settings: Settings, early: Early, adopt: bool = False) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. SIGHUP stays ignored if this process ignores it, as under `nohup`.

    Args:
        settings: the settings of this installation.
        early: answers requests on the socket until the service is loaded.
        adopt: continue not only experiments that were created through the API, but also those whose script has exited.

    Raises:
        SpecError: tokens are needed but no admin has a token; the current folder has been deleted; or the settings have
            an address of Ray Client.
    """
    if (settings.ray_address or "").startswith(RAY_CLIENT):
        raise SpecError(no_ray_client(), "/ray_address")
    working_folder()  # Ray cannot be started in a folder that has been deleted
    # the server handles these signals while it serves, and raises them again after it has shut down
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)
    try:
        with Supervisor.loading(settings, adopt) as supervisor:  # so Ray and the API are loaded at the same time
            _serve(settings, early, supervisor)
    except KeyboardInterrupt:
        if not settings.ray_address:
            print(AFTERWARDS, flush=True)


def _hang_up(number: int, frame: FrameType | None) -> None:
    """End the service, which has lost its terminal. Shells and the kernel may send several SIGHUPs; the others change nothing."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leave_lost_terminal()
    signal.default_int_handler(number, frame)


def _serve(settings: Settings, early: Early, supervisor: Supervisor) -> None:
    from tuner.api import create_app
    from tuner.api.server import Server
    from tuner.store import Store, shown_url

    settings = with_auth(settings)
    port = early.listening.getsockname()[1]
    log_format.configure(settings.log_level, settings.log_format)
    tracing.configure(settings.traces, "service", __version__)
    settings.make_home()
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate(patient=True)
        check_tokens(settings, store)
        with supervisor:
            created = create_app(settings, store, supervisor)
            where = url_of(settings.host, port)
            print(f"tuner is at {where}   (database {shown_url(settings.database_url)})", flush=True)
            print(about_tokens(settings), flush=True)
            if not settings.ray_address:
                print("Ctrl-C stops it, but not Ray or running searches. `tuner serve --stop` stops those.", flush=True)
            threading.Thread(target=_load_ahead, args=(supervisor,), name="load-ahead", daemon=True).start()
            early.end()
            with announced(settings.home, settings.host, port, shown_url(settings.database_url)):
                Server(created, log_level=settings.log_level.lower()).run(sockets=[early.listening])


def _load_ahead(supervisor: Supervisor) -> None:
    """Load `SLOW_MODULES` once the driver is ready, so that the first request that needs one of them does not wait."""
    end = time.monotonic() + LOAD_AFTER_S
    while supervisor.problem() is not None and time.monotonic() < end:
        time.sleep(0.1)
    for name in SLOW_MODULES:
        importlib.import_module(name)
    gc.freeze()  # `Server` has done this after its start; do it again for the modules that were loaded since
