"""The notebook of `examples/`, executed by a real kernel, and what its cells show."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "first_search.ipynb"


class Client(NotebookClient):
    """Executes a notebook, and counts how often an output was replaced."""

    replaced = 0

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        self.replaced += msg["msg_type"] == "update_display_data"
        return super().process_message(msg, cell, cell_index)


def executed(notebook: Any, folder: Path) -> Client:
    kernel = AsyncKernelManager()
    assert kernel.kernel_spec is not None
    kernel.kernel_spec.argv[0] = sys.executable
    client = Client(notebook, km=kernel, timeout=120, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "TUNER_HOME": str(folder / "home")})
    return client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    return executed(nbformat.read(NOTEBOOK, as_version=4), tmp_path_factory.mktemp("notebook"))


def outputs(client: Client, code: str) -> list[Any]:
    """Return the outputs of the one cell that contains this line."""
    (cell,) = [cell for cell in client.nb.cells if cell.cell_type == "code" and code in cell.source.splitlines()]
    return list(cell.outputs)


def test_it_is_stored_without_outputs() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    for cell in stored.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.slow
def test_the_progress_of_a_search_is_one_output_that_is_replaced(client: Client) -> None:
    progress, *lines, result = outputs(client, "result = tuner.run(")
    assert client.replaced >= 2  # two searches, each of which ends with another picture than the first one
    assert {line.output_type for line in lines} <= {"stream"}, lines
    assert len(lines) <= 1, lines
    assert "completed, 8/8 trials" in progress.data["text/plain"]
    assert progress.data["text/html"].count("<tr") == 9
    assert "reached max_t" in progress.data["text/html"]
    assert "<b>first_search exp_" in result.data["text/html"]
    assert result.data["text/plain"].startswith("Result(exp_")


@pytest.mark.slow
def test_trials_and_experiments_are_shown_as_tables(client: Client) -> None:
    (trial,) = outputs(client, "result.best_trial")
    assert "best value" in trial.data["text/html"]
    (experiments,) = outputs(client, "tuner.experiments()")
    assert "first_search" in experiments.data["text/html"]


@pytest.mark.slow
@pytest.mark.parametrize("line", ["result.plot()", 'result.plot("parallel")'])
def test_plots_are_shown(client: Client, line: str) -> None:
    (figure,) = outputs(client, line)
    assert figure.data["application/vnd.plotly.v1+json"]["data"]


SEARCH = """
import time, tuner


def train(config):
    for step in range(60):
        time.sleep(0.1)
        tuner.report({"loss": config["lr"] / (step + 1)})


space = {"lr": tuner.uniform(0, 1)}
result = tuner.run(train, space, metric="loss", mode="min", max_t=60, num_samples=2, scheduler="fifo", name="mine")
print(result.state)
"""


def said(cell: Any) -> str:
    """Return the text of a cell's outputs."""
    return "\n".join(str(one.get("text") or one.get("data", {}).get("text/plain") or one) for one in cell.outputs)


@pytest.mark.long  # the short form, in a script, is in tests/sdk/test_run.py
async def test_an_interrupted_kernel_pauses_the_search_and_the_next_cell_continues_it(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(code) for code in (SEARCH, 'print(tuner.resume("mine").state)')]
    kernel = AsyncKernelManager()
    assert kernel.kernel_spec is not None
    kernel.kernel_spec.argv[0] = sys.executable
    client = Client(nbformat.v4.new_notebook(cells=cells), km=kernel, timeout=120)
    first, second = client.nb.cells
    async with client.async_setup_kernel(env={**os.environ, "TUNER_HOME": str(tmp_path)}):
        running = asyncio.create_task(client.async_execute_cell(first, 0))
        async with asyncio.timeout(100):
            while "best loss" not in said(first):
                await asyncio.sleep(0.05)
        await kernel.interrupt_kernel()
        await running
        await client.async_execute_cell(second, 1)
    assert 'continue with: tuner.resume("exp_' in said(first), "what can be entered here, not a command of a shell"
    assert said(first).endswith("paused\n")
    assert said(second).endswith("completed\n")
    assert "IProgress" not in said(first)
