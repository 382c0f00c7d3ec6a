"""A rank's working directory. By default, each rank has its own, so that ranks do not overwrite each other's files."""

from __future__ import annotations

import os

from tuner.trials.messages.launch import Launch

ORIGINAL = "TUNE_ORIG_WORKING_DIR"
"""The variable with the directory where the script was started, or that of its `runtime_env`, as in Ray Tune."""


def enter(launch: Launch, rank: int) -> str:
    """Change to the working directory that the experiment requests. Return this rank's own directory in the trial.

    The returned directory is created in any case. All of the trial's segments that run on the same node share it.
    """
    unpacked = "working_dir" in launch.runtime_env  # Ray has unpacked this directory, and started the process in it
    if started_in := os.getcwd() if unpacked else launch.code.working_dir:
        os.environ[ORIGINAL] = started_in
    own = os.path.abspath(os.path.join(launch.log_dir, f"trial_{launch.trial_number:05d}", f"rank{rank}"))
    os.makedirs(own, exist_ok=True)
    if launch.scaling.working_dir == "trial":
        os.chdir(own)
    elif not unpacked and launch.code.working_dir and os.path.isdir(launch.code.working_dir):
        os.chdir(launch.code.working_dir)
    return own


def explain_missing(error: BaseException) -> None:
    """Add a note to an error about a missing file if the file exists in the directory that `ORIGINAL` names."""
    started_in = os.environ.get(ORIGINAL)
    name = getattr(error, "filename", None)
    if not isinstance(error, FileNotFoundError) or not isinstance(name, str) or os.path.isabs(name) or not started_in:
        return
    found = next((path for path in (name, os.path.dirname(name)) if path and _is_in(started_in, path)), None)
    if found is not None:
        error.add_note(
            f"{found} is in {started_in}, but each trial has its own working directory. Use an absolute path, or "
            "tuner.run(..., working_dir='caller')"
        )


def _is_in(folder: str, path: str) -> bool:
    return os.path.exists(os.path.join(folder, path)) and not os.path.exists(path)
