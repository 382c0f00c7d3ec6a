"""`tuner run`: a search over a script, or over a function in a file."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.cli.parameters import space_of
from tuner.cli.targets import function
from tuner.errors import EntrypointError, SpecError
from tuner.sdk.run import Result
from tuner.sdk.run import run as search
from tuner.trials.training.metric_lines import compiled
from tuner.trials.training.script import NOT_ELASTIC, TRIAL_DIR, Script, placeholders
from tuner.usercode import archives
from tuner.usercode.folder import working_folder


def run_target(
    target: str,
    arguments: Sequence[str],
    params: Sequence[str],
    metric_pattern: str | None,
    options: Mapping[str, Any],
    *,
    is_module: bool = False,
) -> Result:
    """Run a search over a script, ``FILE.py:FUNCTION`` or ``module:function``, and wait until the search has ended.

    Args:
        target: the script or function.
        arguments: the script's arguments. ``{lr}`` stands for the value of the parameter lr.
        params: the parameters of the search space, such as ``lr=loguniform(1e-4, 1e-1)``.
        metric_pattern: the regular expression that finds metrics in the script's output.
        options: further arguments of `tuner.run`.
        is_module: True if the target is the name of a module to run as a script, as `python -m` does.

    Raises:
        SpecError: an argument is wrong. Nothing was started.
    """
    found = space_of(params)
    if ":" in target and not is_module:
        if arguments or metric_pattern is not None:
            raise SpecError(
                f"arguments and --metric-pattern are for scripts only; a function gets the configuration. Options of tuner, "
                f"such as --param, come before {target}",
                "/trainable",
            )
        return search(function(target), found, **options)
    if "num_workers" in options and not isinstance(options["num_workers"], int):
        raise SpecError(NOT_ELASTIC, "/num_workers")
    script = (_module if is_module else _script)(target, arguments, metric_pattern, options)
    _check_placeholders(script.arguments, found)
    ranks = options.get("num_workers", 1)
    return search(
        script,
        found,
        **{
            "name": target if is_module else Path(target).stem,
            "working_dir": "caller",
            # With the backend "gloo", the worker group hosts the rendezvous store of its ranks.
            "backend": "gloo" if ranks > 1 else "none",
            **options,
        },
    )


def workers_of(text: str | None) -> int | dict[str, int] | None:
    """Read a number of ranks, such as "4", or a range, such as "1-8". Raise SpecError for any other text."""
    if text is None:
        return None
    least, dash, most = text.partition("-")
    if not least.isdecimal() or int(least) < 1 or (dash and not most.isdecimal()):
        raise SpecError(f"expected a number such as 4 or a range such as 1-8, got {text!r}", "/num_workers")
    return {"min": int(least), "max": int(most)} if dash else int(least)


def run_status(result: Result) -> int:
    """Return the exit status of `tuner run`: 0 if the search is completed and has a result, 130 if it was paused, else 1."""
    if result.state == "paused":
        return 130
    return 0 if result.state == "completed" and result.best_trial is not None else 1


def _script(target: str, arguments: Sequence[str], pattern: str | None, options: Mapping[str, Any]) -> Script:
    path = Path(target)
    if not path.is_file():
        expected = "expected a script, FILE.py:FUNCTION or module:function"
        if re.fullmatch(r"python[\d.]*|torchrun", target):
            expected = (
                "begin with the script, which each rank runs as torchrun would; --num-workers sets the number of ranks"
            )
        raise EntrypointError(f"there is no file {target}; {expected}", "/trainable")
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise EntrypointError(f"{target} is neither a .py file nor executable", "/trainable")
    _check_pattern(pattern, options)
    imports: tuple[str, ...] = ()
    if options.get("address") is not None and path.suffix == ".py":
        sys.path.insert(0, str(path.parent.absolute()))  # Python looks there for modules that the script imports
        imports = tuple(dict.fromkeys(archives.imports_of(path)))
    return Script(
        os.path.abspath(path),
        path.read_bytes(),
        tuple(arguments),
        options["metric"],
        pattern,
        _grace_s(options),
        imports,
    )


def _module(target: str, arguments: Sequence[str], pattern: str | None, options: Mapping[str, Any]) -> Script:
    if options.get("address") is not None:
        raise SpecError("-m runs a module of this machine; give a service the path of a script", "/trainable")
    if Path(target).is_file():
        raise EntrypointError(f"{target} is a file, not the name of a module: leave out -m", "/trainable")
    if (here := working_folder()) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        found = importlib.util.find_spec(target)
    except (ImportError, ValueError) as error:
        raise EntrypointError(f"the module {target} cannot be imported: {error}", "/trainable") from error
    if found is None:
        raise EntrypointError(f"there is no module {target} in {here} or among the packages", "/trainable")
    _check_pattern(pattern, options)
    return Script(target, None, tuple(arguments), options["metric"], pattern, _grace_s(options))


def _check_pattern(pattern: str | None, options: Mapping[str, Any]) -> None:
    if pattern is not None:
        try:
            compiled(pattern, options["metric"])
        except ValueError as error:
            raise SpecError(f"--metric-pattern: {error}", "/metric") from error


def _grace_s(options: Mapping[str, Any]) -> float:
    return float(options.get("stop_grace_s", 10.0))


def _check_placeholders(arguments: tuple[str, ...], found: Mapping[str, Any]) -> None:
    """Raise SpecError if an argument has a placeholder without a parameter. Warn of parameters without a placeholder."""
    named = placeholders(arguments)
    if unknown := sorted(named - found.keys() - {TRIAL_DIR}):
        raise SpecError(
            f"{{{unknown[0]}}} is in the script's arguments, but there is no --param {unknown[0]}=...; write "
            f"{{{{{unknown[0]}}}}} for the literal text. tuner's options come before the script, the script's "
            "arguments after it",
            "/space",
        )
    for name in found.keys() - named:
        print(
            f"warning: no argument of the script has {{{name}}}; the script gets it only from "
            "tuner.get_context().config",
            file=sys.stderr,
        )
