"""`tuner.serving.deployment`: the best checkpoint of a search behind Ray Serve.

Each release is a separate Ray Serve application: `NAME-v1`, `NAME-v2`, ... The application `NAME` answers HTTP requests, and
passes inputs on to the newest release that is running. It keeps no state: if its process dies, the next process asks Ray Serve
for the releases.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import re
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI

from tuner.api.access.auth import is_here
from tuner.client.synchronous import connect as connect_to_service
from tuner.errors import Conflict, MissingPackage, NotFound, SpecError, TunerError
from tuner.experiment.operations.usecases import id_of
from tuner.hosts.ray import cluster
from tuner.names import with_extra
from tuner.sdk.result import Result
from tuner.serving.ingress import application
from tuner.serving.origin import Origin, origin
from tuner.serving.rollouts import Find, InProcess, Model, Release, Rollouts, Running
from tuner.settings import Settings
from tuner.store import Store

POLL_S = 0.1
PATIENCE_S = 5.0
"""The time for which a rollout tries to reach the tuner service, in seconds."""
INGRESS_REQUESTS = 1000
"""The maximum number of requests that the ingress handles at once. Most of them wait for a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of each replica of a model."""

    num_replicas: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    runtime_env: Mapping[str, Any] | None = None
    timeout_s: float = 600.0  # a release that is not ready after this time has failed


def finder(experiment: str, settings: Settings) -> Find:
    """Return a function that finds the current best checkpoint of an experiment. Any process on this machine can call it.

    The function queries the service if the settings name one, otherwise the database. `finder` itself raises NotFound if there is
    no such experiment.
    """
    if settings.address is None:
        with Store.open(settings.database_url, synchronous=settings.durability) as store:
            store.migrate()
            found = id_of(store, experiment)
        if not found.startswith("exp_"):
            raise NotFound(f"{experiment!r} is a trial; expected an experiment's id or name")
        return functools.partial(_best_here, settings.database_url, found)
    return functools.partial(_best_there, settings.address, settings.token, experiment)


def _finder_of(result: Result, settings: Settings) -> Find:
    try:
        return finder(result.experiment_id, settings)
    except NotFound as error:
        raise NotFound(f"{error}; if the search ran on a service, set TUNER_ADDRESS to its address") from error


def _best_here(database_url: str, experiment_id: str) -> Origin:
    with Store.open(database_url) as store:
        return origin(Result.load(store, experiment_id, log=False))


def _best_there(address: str, token: str | None, experiment: str) -> Origin:
    with connect_to_service(address, token=token, patience_s=PATIENCE_S) as client:
        return origin(client.experiment(experiment).result())


class Deployment:
    """A model served over HTTP. `close`, or leaving a `with` block, shuts down the model and all that was started for it."""

    def __init__(self, name: str, url: str, ending: contextlib.ExitStack) -> None:
        self.name, self.url = name, url
        self._ending = ending

    def wait(self) -> None:
        """Wait for Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)

    def close(self) -> None:
        self._ending.close()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Deployment({self.name!r} at {self.url})"


def deployment(
    experiment: str | Result | Find,
    predictor: Callable[..., Any],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    name: str = "tuner-model",
    route_prefix: str = "/",
    num_replicas: int = 1,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    runtime_env: Mapping[str, Any] | None = None,
    timeout_s: float = 600.0,
    ray_address: str | None = None,
) -> Deployment:
    """Serve the best checkpoint of an experiment with Ray Serve, and return once the model is ready.

        class Digits:
            def __init__(self, checkpoint, config):
                self.model = tuner.torch.load_model(checkpoint, Net(config["width"]))

            def predict(self, inputs):
                return self.model(torch.tensor(inputs)).argmax(1)

        with tuner.serving.deployment("digits", Digits) as deployed:
            print(httpx.post(f"{deployed.url}/predict", json={"inputs": images}).json())

    `POST /predict` calls `predict`, `GET /info` says where the model comes from, `GET /healthz` answers when the model is
    ready, and `POST /rollout` replaces the model with the experiment's best checkpoint at that time. The old model keeps
    answering until the new one is ready, and stays if the new one fails. So a rollout needs resources for both models.

    Args:
        experiment: the id (``exp_...``) or the name of an experiment in this home's database or on the service at
            TUNER_ADDRESS, or its result; or a function that returns an `Origin`, and is called again for each rollout.
        predictor: a class such as `Digits` above. It is constructed with the checkpoint and the configuration.
        host: the address to listen on. Anything but loopback needs a token.
        port: the port to listen on. 0 picks a free port.
        token: the token that callers must send as ``Authorization: Bearer TOKEN``.
        name: the name of the Ray Serve application, which must be unique on its Ray cluster.
        route_prefix: the URL path under which the application answers.
        num_replicas: the number of processes that hold the model.
        num_cpus: the CPUs of each process.
        num_gpus: the GPUs of each process.
        runtime_env: Ray's runtime environment for each process.
        timeout_s: a model that is not ready after this many seconds has failed.
        ray_address: the address of a Ray cluster. None: the cluster that this process is connected to, else a private one on
            this machine. If the cluster runs Ray Serve already, the host and port of Ray Serve are used, and a token is needed
            unless that host is loopback.

    Raises:
        Conflict: the cluster runs an application of this name already.
        SpecError: other machines could reach the model, but no token is given; or the token is empty.
        NotFound: there is no such experiment.
        CheckpointError: the experiment has no best checkpoint.
        MissingPackage: Ray Serve is not installed.
        TunerError: the predictor failed.
    """
    check_host(host, token)
    settings = Settings.from_env()
    if isinstance(experiment, Result):
        find = _finder_of(experiment, settings)
    else:
        find = finder(experiment, settings) if isinstance(experiment, str) else experiment
    first = Release(1, find())
    serve = _serve()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    by_value(predictor)
    options = Options(
        num_replicas=num_replicas, num_cpus=num_cpus, num_gpus=num_gpus, runtime_env=runtime_env, timeout_s=timeout_s
    )
    with contextlib.ExitStack() as stack:
        if cluster.connect(ray_address or settings.ray_address):
            stack.callback(_end_ray, name)
        if not _serve_runs():
            port = port or _free_port(host)
            serve.start(http_options={"host": host, "port": port})
            stack.callback(_end_serve, name)
            root = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        else:
            client = importlib.import_module("ray.serve.context")._get_global_client()
            _check_running(client, token)
            root = client.root_url
        _check_name(name, serve.status().applications)
        stage = OnServe(name, predictor, options)
        stack.callback(stage.end_all)
        stage._up(first)  # asyncio.run would fail if the caller is in an event loop
        made = serve.deployment(serve.ingress(build)(Ingress)).options(
            name="ingress",
            ray_actor_options={"num_cpus": 0, "resources": _this_node()},
            max_constructor_retry_count=3,
            max_ongoing_requests=INGRESS_REQUESTS,
        )
        hosts = [urlsplit(root).hostname or "", *settings.allowed_hosts]  # a replica has the environment of its node
        bound = made.bind(name, find, predictor, options, token, hosts)
        stack.callback(stage.end, name)
        serve.run(bound, name=name, route_prefix=route_prefix)
        return Deployment(name, root + route_prefix.rstrip("/"), stack.pop_all())


def _serve() -> Any:
    """Return the module `ray.serve`. Raise MissingPackage if it is not installed."""
    try:
        return importlib.import_module("ray.serve")
    except ImportError as error:
        raise MissingPackage(
            f"Ray Serve is not installed: {with_extra('serve')}. `tuner serve-model --without-ray` needs no extra ({error})"
        ) from error


def _serve_runs() -> bool:
    """Return True if Ray Serve runs on the cluster that this process is connected to."""
    ray = importlib.import_module("ray")
    with contextlib.suppress(ValueError):
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
        return True
    return False


def _check_running(client: Any, token: str | None) -> None:
    """Raise SpecError if other machines can reach the running Ray Serve and no token is given. `client`: Ray's private API."""
    host = getattr(getattr(client, "http_config", None), "host", None)
    here = False
    with contextlib.suppress(OSError):  # a host name that this machine cannot resolve
        here = isinstance(host, str) and host != "" and is_here(host)
    if token is None and not here:
        raise SpecError(
            f"Ray Serve already runs on this cluster, and other machines may reach its host {host or '(unknown)'}: "
            "pass a token that callers must send",
            "/token",
        )


def _is_of(app: str, name: str) -> bool:
    """Return True if a Ray Serve application belongs to the deployment `name`."""
    return re.fullmatch(rf"{re.escape(name)}(-v\d+)?", app) is not None


def _check_name(name: str, applications: Iterable[str]) -> None:
    """Raise Conflict if a deployment called `name` and one of the applications would overwrite each other."""
    for app in applications:
        if _is_of(app, name) or _is_of(name, app):
            raise Conflict(
                f"Ray Serve already has an application {app!r}: delete it, or choose a name other than {name!r}"
            )


def _others(name: str) -> bool:
    """Return True if Ray Serve has applications that do not belong to the deployment `name`."""
    with contextlib.suppress(Exception):  # Ray Serve may have shut down
        return any(not _is_of(app, name) for app in _serve().status().applications)
    return False


def _end_serve(name: str) -> None:
    if not _others(name):
        _serve().shutdown()


def _end_ray(name: str) -> None:
    if not _others(name):
        importlib.import_module("ray").shutdown()


def application_name(experiment: str) -> str:
    """Return a name for the Ray Serve application that serves an experiment."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", experiment).strip("-.") or "tuner-model"


def _this_node() -> dict[str, float]:
    """Return a Ray resource that only this node has. It ties a process to this node, because the database may be a file here."""
    ray = importlib.import_module("ray")
    return {f"node:{ray.util.get_node_ip_address()}": 0.001}


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])


def check_host(host: str, token: str | None) -> None:
    """Raise SpecError if other machines could use a model served at `host` without a token, or if the token is empty."""
    if token is not None and not token.strip():
        raise SpecError("the token is empty: callers must send one that others do not know", "/token")
    if token is None and not is_here(host):
        raise SpecError(f"other machines can reach {host}: pass a token that callers must send", "/token")


def by_value(predictor: Callable[..., Any]) -> None:
    """Pickle the predictor's module by value, unless it is installed, since other processes may not find the module."""
    module = sys.modules.get(getattr(predictor, "__module__", ""))
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__":
        return
    installed = [os.path.realpath(path) for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}]
    if not any(os.path.realpath(file).startswith(path + os.sep) for path in installed):
        # Ray has its own copy of cloudpickle.
        importlib.import_module("ray.cloudpickle").register_pickle_by_value(module)


class OnServe:
    """Runs models as Ray Serve applications."""

    def __init__(self, name: str, predictor: Callable[..., Any], options: Options) -> None:
        self._name, self._predictor, self._options = name, predictor, options

    async def up(self, release: Release) -> Running:
        return await asyncio.to_thread(self._up, release)

    def _up(self, release: Release) -> Running:
        serve = _serve()
        app = f"{self._name}-v{release.version}"
        options = self._options
        environment = {"runtime_env": dict(options.runtime_env)} if options.runtime_env else {}
        made = serve.deployment(Model).options(
            name="model",
            num_replicas=options.num_replicas,
            ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus, **environment},
            max_constructor_retry_count=1,
        )
        target = serve.RunTarget(made.bind(release, self._predictor), name=app, route_prefix=None)
        try:
            serve.run_many([target], wait_for_applications_running=False)
            self._wait(app)
            return _OnServe(release, serve.get_app_handle(app))
        except BaseException:
            self.end(app)
            raise

    def _wait(self, app: str) -> None:
        serve = _serve()
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            found = serve.status().applications.get(app)
            state = "NOT_STARTED" if found is None else str(found.status.value)
            if state == "RUNNING":
                return
            if found is not None and state in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise TunerError(_why(found))
            if time.monotonic() > deadline:
                raise TunerError(f"the model is not ready after {self._options.timeout_s:g} s: {state}. {_why(found)}")
            time.sleep(POLL_S)

    async def down(self, running: Running) -> None:
        await asyncio.to_thread(self.end, f"{self._name}-v{running.release.version}")

    def end(self, app: str) -> None:
        with contextlib.suppress(Exception):  # Ray Serve may have shut down
            _serve().delete(app)

    def end_all(self, keep: int | None = None) -> None:
        """Delete every release except `keep`."""
        for version in self.versions():
            if version != keep:
                self.end(f"{self._name}-v{version}")

    def versions(self, state: str | None = None) -> list[int]:
        """Return the versions of the existing releases, oldest first; if `state` is given, only of those in this state."""
        prefix = f"{self._name}-v"
        with contextlib.suppress(Exception):
            return sorted(
                int(app.removeprefix(prefix))
                for app, found in _serve().status().applications.items()
                if app.startswith(prefix) and app.removeprefix(prefix).isdigit() and state in (None, found.status.value)
            )
        return []

    async def newest(self) -> Running:
        """Return the newest release that is running."""
        [*_, version] = await asyncio.to_thread(self.versions, "RUNNING")
        handle = _serve().get_app_handle(f"{self._name}-v{version}")
        return _OnServe(await handle.get_release.remote(), handle)


def _why(status: Any) -> str:
    """Return Ray Serve's message about a failure; of a traceback, only the last line, which is the user's error."""
    if status is None:
        return ""
    messages = [str(one.message) for one in status.deployments.values() if one.message] or [str(status.message)]
    return "; ".join(
        message.rstrip().splitlines()[-1].strip() if "Traceback" in message else message.strip() for message in messages
    )


class _OnServe:
    def __init__(self, release: Release, handle: Any) -> None:
        self.release = release
        self._handle = handle

    async def predict(self, inputs: Any) -> Any:
        return await self._handle.predict.remote(inputs)


_here: list[FastAPI] = []
"""The ASGI application of this process, which is a replica."""


class Ingress:
    """The Ray Serve replica that answers HTTP requests."""

    async def __init__(  # type: ignore[misc]
        self,
        name: str,
        find: Find,
        predictor: Callable[..., Any],
        options: Options,
        token: str | None,
        hosts: Collection[str],
    ) -> None:
        stage = OnServe(name, predictor, options)
        current = await stage.newest()
        # The previous process may have died during a rollout.
        await asyncio.to_thread(stage.end_all, current.release.version)
        rollouts = Rollouts(find, stage, current)
        _here[:] = [application(lambda: rollouts, token, hosts)]


def build() -> FastAPI:
    """Return the application of this process. Ray Serve calls this after the constructor of `Ingress`."""
    return _here[0]


async def in_process(
    find: Find, predictor: Callable[..., Any], token: str | None = None, hosts: Collection[str] = ()
) -> FastAPI:
    """Return an application that holds the model in this process, without Ray, for any ASGI server."""
    rollouts = await Rollouts.start(find, InProcess(predictor))
    return application(lambda: rollouts, token, hosts)
