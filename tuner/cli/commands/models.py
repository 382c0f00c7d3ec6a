"""Commands for the best model of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.command_classes import OnService
from tuner.cli.commands.global_options import command_settings
from tuner.cli.commands.parameters import ExperimentName, RayAddress
from tuner.errors import SpecError

group = typer.Typer()


@group.command("export-model", cls=OnService)
def export_model(
    experiment: ExperimentName,
    folder: Annotated[Path, typer.Argument(help="the folder to create")],
    model: Annotated[
        str | None,
        typer.Option(
            help="a function that makes the model from the configuration, or a LightningModule, as FILE.py:NAME or module:name"
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="a format: safetensors (default), torch_export or onnx; repeat for several formats"
        ),
    ] = None,
    example_input: Annotated[
        str | None,
        typer.Option(
            help="an example input of the model, or a function that returns one, as FILE.py:NAME or module:name"
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="the file of the checkpoint with the weights, such as model.pt; default: the only one with a common suffix"
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="the key of the weights in this file; default: a common one, such as model or state_dict"),
    ] = None,
) -> None:
    """Write the best model of an experiment, with a model card, into a new folder, and print the path of the folder."""
    from tuner.cli import serving
    from tuner.cli.service import experiments

    result = experiments.result(command_settings(), experiment)
    print(serving.export_model(result, folder, model, formats or ["safetensors"], example_input, file, key))


@group.command("serve-model", cls=OnService)
def serve_model(
    experiment: ExperimentName,
    predictor: Annotated[
        str,
        typer.Argument(
            help="a class with __init__(self, checkpoint, config) and predict(self, inputs), as FILE.py:CLASS or module:Class"
        ),
    ],
    host: Annotated[
        str, typer.Option(help="address to listen on; addresses other than loopback require --token-file")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 picks a free one")] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="a file that contains the token that callers must send")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="name of the Ray Serve application; default: the name of the experiment")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="number of processes that serve the model")] = 1,
    num_cpus: Annotated[float, typer.Option(min=0, help="number of CPUs of each process")] = 1.0,
    num_gpus: Annotated[float, typer.Option(min=0, help="number of GPUs of each process")] = 0.0,
    ray_address: RayAddress = None,
    without_ray: Annotated[
        bool, typer.Option("--without-ray", help="serve the model from this process, without Ray Serve")
    ] = False,
) -> None:
    """Serve the best model of an experiment over HTTP until Ctrl-C.

    The routes are POST /predict, GET /info, GET /healthz and POST /rollout, which loads a better model if the experiment has
    found one in the meantime.
    """
    from tuner.cli import serving

    try:
        token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"cannot read {token_file}: {getattr(error, 'strerror', None) or error}", "/token_file"
        ) from error
    if without_ray:
        serving.serve_in_process(command_settings(), experiment, predictor, host, port, token)
    else:
        cluster = {"ray_address": ray_address, "num_replicas": replicas, "num_cpus": num_cpus, "num_gpus": num_gpus}
        serving.serve_on_ray(
            command_settings(), experiment, predictor, name, host=host, port=port, token=token, **cluster
        )
