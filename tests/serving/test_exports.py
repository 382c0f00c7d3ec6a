"""`tuner.export`: the best model of a search as files, with a model card."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

import tuner
from tests.serving.search import searched
from tests.trials.lightning.test_load import lit_net, saved_by_a_trial
from tuner.cli.commands import app
from tuner.errors import CheckpointError, NotFound, SpecError, TunerError
from tuner.sdk.result import Result
from tuner.trials.checkpoints.checkpoints import Checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

INPUTS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
ANSWERS = [[9.0], [21.0]]
"""The outputs of the best model, whose slope is 3."""


def build(config: dict[str, Any]) -> torch.nn.Module:
    assert config == {"slope": 3.0}
    return torch.nn.Linear(2, 1)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_HOME", str(tmp_path_factory.mktemp("home")))
        yield searched([1.0, 3.0])


def a_checkpoint(folder: Path, model: torch.nn.Module) -> Checkpoint:
    folder.mkdir()
    torch.save(model.state_dict(), folder / "state.pt")
    return Checkpoint(folder)


def test_every_format_gives_what_the_best_model_gives(result: Result, tmp_path: Path) -> None:
    formats = ("safetensors", "torch_export", "onnx")
    folder = tuner.export(result, tmp_path / "model", model=build, formats=formats, example_input=INPUTS)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "model.onnx", "model.pt2", "model.safetensors"
    ]  # fmt: skip
    assert {path.stat().st_mode for path in folder.iterdir()} == {(folder / "config.json").stat().st_mode}
    more = torch.cat([INPUTS, INPUTS, INPUTS])  # another batch size
    weights = torch.nn.Linear(2, 1)
    weights.load_state_dict(load_file(folder / "model.safetensors"))
    assert weights(INPUTS).tolist() == ANSWERS
    assert torch.export.load(folder / "model.pt2").module()(more).tolist() == ANSWERS * 3
    graph = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(graph)
    [out] = ReferenceEvaluator(graph).run(None, {graph.graph.input[0].name: more.numpy()})
    assert np.asarray(out).tolist() == ANSWERS * 3


def test_the_card_says_where_the_model_comes_from(result: Result, tmp_path: Path) -> None:
    folder = tuner.export(result.name, tmp_path / "model")
    assert load_file(folder / "model.safetensors")["weight"].tolist() == [[3.0, 3.0]]
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata()["experiment"] == result.experiment_id
    facts = json.loads((folder / "config.json").read_text())
    assert facts["config"] == {"slope": 3.0}
    assert (facts["experiment"], facts["trial"], facts["metric"], facts["value"]) == (
        result.experiment_id,
        1,
        "loss",
        0.0,
    )
    assert facts["lineage"] == [{"iteration": 0, "trial": 1, "config": {"slope": 3.0}}]
    assert facts["versions"]["torch"] == metadata.version("torch")  # a build from PyPI adds +cu130 to torch.__version__
    card = (folder / "README.md").read_text()
    for line in (
        f"| experiment | {result.experiment_id} |",
        f"| trial | 1 ({result.best.id}) |",
        "| best value | 0 |",
        '  "slope": 3.0',
        f"| tuner | {tuner.__version__} |",
    ):
        assert line in card, card


def test_a_module_and_a_checkpoint_are_enough(tmp_path: Path) -> None:
    trained = torch.nn.Linear(2, 1)
    source = a_checkpoint(tmp_path / "checkpoint", trained)
    folder = tuner.export(
        source,
        tmp_path / "model",
        model=torch.nn.Linear(2, 1),
        formats=["torch_export"],
        example_input={"input": INPUTS[:1]},
        dynamic_batch=False,
        config={"slope": float("nan"), "width": np.int64(64), "bias": np.True_, "rate": np.float32(0.5)},
    )
    assert torch.equal(torch.export.load(folder / "model.pt2").module()(input=INPUTS[:1]), trained(INPUTS[:1]))
    facts = json.loads((folder / "config.json").read_text())
    assert (facts["experiment"], facts["config"]) == (
        None,
        {"slope": None, "width": 64, "bias": True, "rate": 0.5},
    )
    assert facts["inputs"] == [{"name": "input", "shape": [1, 2], "dtype": "float32"}]


def test_the_file_and_the_key_of_the_weights_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, model = a_checkpoint(tmp_path / "saved", torch.nn.Linear(1, 1)), torch.nn.Linear(2, 1)
    torch.save({"old": checkpoint.path, "ema": model.state_dict()}, tmp_path / "saved" / "model.pt")
    with pytest.raises(CheckpointError, match=r"pass file=, one of model\.pt, state\.pt"):
        tuner.export(checkpoint, tmp_path / "model")
    for made in (None, torch.nn.Linear(2, 1)):
        folder = tuner.export(checkpoint, tmp_path / f"{made}", model=made, file="model.pt", key="ema")
        assert load_file(folder / "model.safetensors")["weight"].tolist() == model.weight.tolist()
    with pytest.raises(SpecError, match=r"key: a LightningModule is loaded from checkpoint\.ckpt"):
        tuner.export(checkpoint, tmp_path / "model", model=lit_net("pytorch_lightning", keeps=True), key="ema")
    monkeypatch.setattr("tuner.cli.service.experiments.result", lambda settings, experiment: checkpoint)
    command = ["export-model", "two", str(tmp_path / "exported"), "--file", "model.pt", "--key", "ema"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert load_file(tmp_path / "exported" / "model.safetensors")["bias"].tolist() == model.bias.tolist()


def test_a_lightning_class_makes_itself(tmp_path: Path) -> None:
    LitNet = lit_net("lightning.pytorch", keeps=True)
    trained = LitNet(width=5)
    source = saved_by_a_trial("lightning.pytorch", trained)
    inputs = torch.ones(3, 4)
    folder = tuner.export(source, tmp_path / "m", model=LitNet, formats=["torch_export"], example_input=inputs)
    assert torch.allclose(torch.export.load(folder / "model.pt2").module()(inputs), trained.eval()(inputs))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formats": ["safetensor"]}, "got 'safetensor'; did you mean safetensors"),
        ({"formats": "onnx"}, "expected a list of safetensors, torch_export, onnx, got 'onnx'"),
        ({"formats": ["onnx"], "example_input": INPUTS}, "contains the code of the model: pass the model"),
        ({"formats": ["torch_export"], "model": torch.nn.Linear(2, 1)}, "pass an input to call it with"),
        (
            {"formats": ["torch_export"], "model": torch.nn.Linear(2, 1), "example_input": INPUTS[:1]},
            r"shape \(1, 2\).*pass at least two rows, or dynamic_batch=False",
        ),
        ({"model": torch.nn.Linear}, r"lambda config: Linear\(\*\*config\)"),
        ({"model": dict}, r"does not know how to make a dict"),
        ({"model": lambda config: 3}, "a function that returns one, got 3"),
    ],
)
def test_a_wrong_argument_is_explained_and_leaves_nothing(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    source = a_checkpoint(tmp_path / "checkpoint", torch.nn.Linear(2, 1))
    with pytest.raises(SpecError, match=words):
        tuner.export(source, tmp_path / "model", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


class Branches(torch.nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) if inputs.sum() > 0 else inputs  # depends on the data


def test_a_model_that_torch_cannot_export_is_explained_and_leaves_nothing(tmp_path: Path) -> None:
    source = a_checkpoint(tmp_path / "checkpoint", torch.nn.Linear(2, 1))
    with pytest.raises(TunerError, match="torch.export cannot export this Branches: "):
        tuner.export(source, tmp_path / "m", model=Branches(2, 1), formats=["torch_export"], example_input=INPUTS)
    with pytest.raises(CheckpointError, match="weights of another model"):
        tuner.export(source, tmp_path / "m", model=torch.nn.Linear(3, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "onnx" in name else really(name))
    with pytest.raises(SpecError, match=r"onnx needs onnx and onnxscript: pip install 'tuner-hpo\[export\]'"):
        tuner.export(Checkpoint(tmp_path), tmp_path / "model", formats=["onnx"])


def test_no_folder_is_overwritten(result: Result, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SpecError, match="exists already"):
        tuner.export(result, tmp_path)
    (tmp_path / "empty").mkdir()
    assert (tuner.export(result, tmp_path / "empty") / "README.md").exists()


def test_a_search_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        tuner.export("exp_none", tmp_path / "model")
    with pytest.raises(SpecError, match="expected a result, a checkpoint or the name"):
        tuner.export(3, tmp_path / "model")  # type: ignore[arg-type]


def test_the_command_exports(result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\ndef build(config):\n    return torch.nn.Linear(2, 1)\ndef example():\n    return torch.ones(2, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["export-model", result.name, "out", "--model", "nets.py:build", "--example-input", "nets.py:example"]
    done = CliRunner().invoke(app, [*words, "--format", "torch_export", "--format", "safetensors"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "out")
    assert torch.export.load(tmp_path / "out" / "model.pt2").module()(INPUTS).tolist() == ANSWERS


class Stateful(torch.nn.Linear):
    def get_extra_state(self) -> Any:
        return {"calls": 3}

    def set_extra_state(self, state: Any) -> None: ...

    @classmethod
    def load_from_checkpoint(cls, path: str, **options: Any) -> Any:
        return cls(2, 1)


class OfDict(torch.nn.Linear):
    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return super().forward(batch["x"] + batch["more"][0])


class OfMany(torch.nn.Linear):
    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return super().forward(first + sum(others))


@pytest.mark.parametrize(
    ("make", "example", "names"),
    [
        (OfDict, ({"x": INPUTS, "more": [INPUTS]},), {"0['x']", "0['more'][0]"}),
        (OfMany, (INPUTS, INPUTS, INPUTS), {"0", "1", "2"}),
    ],
)
def test_arguments_may_be_dicts_lists_and_any_number_of_tensors(
    make: Any, example: Any, names: set[str], tmp_path: Path
) -> None:
    """torch.export refused them with words about `dynamic_shapes`, which nobody had passed."""
    model = make(2, 1)
    source = a_checkpoint(tmp_path / "checkpoint", model)
    folder = tuner.export(source, tmp_path / "m", model=make(2, 1), formats=["torch_export"], example_input=example)
    tree_map = torch.utils._pytree.tree_map
    more = tree_map(lambda tensor: torch.cat([tensor, tensor, tensor]), example)  # another batch size
    torch.testing.assert_close(torch.export.load(folder / "model.pt2").module()(*more), model(*more))
    inputs = json.loads((folder / "config.json").read_text())["inputs"]
    assert {given.pop("name") for given in inputs} == names
    assert inputs == [{"shape": [2, 2], "dtype": "float32"}] * len(names)
    single = tree_map(lambda tensor: tensor[:1], example)
    with pytest.raises(SpecError, match="pass at least two rows"):
        tuner.export(source, tmp_path / "n", model=make(2, 1), formats=["torch_export"], example_input=single)


class OfKeywords(torch.nn.Linear):
    def forward(self, x: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return super().forward(x + sum(more.values()))


def test_a_model_of_any_keyword_arguments_needs_a_fixed_batch(tmp_path: Path) -> None:
    """The error was "Must provide a tree_name when there might be a mismatch"."""
    source = a_checkpoint(tmp_path / "checkpoint", torch.nn.Linear(2, 1))
    given: dict[str, Any] = {"formats": ["torch_export"], "example_input": {"x": INPUTS, "y": INPUTS, "z": INPUTS}}
    words = r"`forward` takes 'y', 'z' in \*\*more: name these arguments in `forward`, or pass dynamic_batch=False"
    with pytest.raises(TunerError, match=words):
        tuner.export(source, tmp_path / "m", model=OfKeywords(2, 1), **given)
    assert tuner.export(source, tmp_path / "m", model=OfKeywords(2, 1), dynamic_batch=False, **given)
    only = {**given, "example_input": {"x": INPUTS}}
    assert tuner.export(source, tmp_path / "n", model=OfKeywords(2, 1), **only), "it gets no further arguments"


def test_state_that_is_no_tensor_is_left_out_and_named(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "checkpoint.ckpt")
    folder = tuner.export(Checkpoint(tmp_path), tmp_path / "model", model=Stateful)
    assert set(load_file(folder / "model.safetensors")) == {"weight", "bias"}
    assert "without `_extra_state`, which this format cannot hold" in (folder / "README.md").read_text()
    assert folder.stat().st_mode & 0o777 == 0o755


@dataclasses.dataclass
class Out:
    values: torch.Tensor


class Named(torch.nn.Linear):
    def forward(self, inputs: torch.Tensor) -> Any:
        return Out(super().forward(inputs))


def test_outputs_that_cannot_be_compared_are_explained(tmp_path: Path) -> None:
    source = a_checkpoint(tmp_path / "checkpoint", torch.nn.Linear(2, 1))
    with pytest.raises(TunerError, match="the outputs of Named cannot be compared with"):
        torch.export.register_dataclass(Out, serialized_type_name="tests.serving.Out")
        tuner.export(source, tmp_path / "m", model=Named(2, 1), formats=["torch_export"], example_input=INPUTS)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
