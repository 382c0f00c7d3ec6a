"""`tuner run`: a search over a script, or over a function in a file."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner import space
from tuner.errors import EntrypointError, ErrorCollector, SpecError
from tuner.sdk.run import Result
from tuner.sdk.run import run as search
from tuner.trials.training.metric_lines import compiled
from tuner.trials.training.script import NOT_ELASTIC, TRIAL_DIR, Script, placeholders
from tuner.usercode import archives
from tuner.usercode.trainable import working_folder

PRIMITIVES = (
    "choice", "grid_search", "lograndint", "loguniform", "qlograndint", "qloguniform", "qrandint", "qrandn", "quniform",
    "randint", "randn", "uniform",
)  # fmt: skip


def run_target(
    target: str, arguments: Sequence[str], params: Sequence[str], metric_pattern: str | None, options: Mapping[str, Any]
) -> Result:
    """Run a search over a script, ``FILE.py:FUNCTION`` or ``module:function``, and wait until the search has ended.

    Args:
        target: the script or function.
        arguments: the script's arguments. ``{lr}`` stands for the value of the parameter lr.
        params: the parameters of the search space, such as ``lr=loguniform(1e-4, 1e-1)``.
        metric_pattern: the regular expression that finds metrics in the script's output.
        options: further arguments of `tuner.run`.

    Raises:
        SpecError: an argument is wrong. Nothing was started.
    """
    found = space_of(params)
    if ":" in target:
        if arguments or metric_pattern is not None:
            raise SpecError(
                f"arguments and --metric-pattern are for scripts only; a function gets the configuration. Options of tuner, "
                f"such as --param, come before {target}",
                "/trainable",
            )
        return search(function(target), found, **options)
    if "num_workers" in options and not isinstance(options["num_workers"], int):
        raise SpecError(NOT_ELASTIC, "/num_workers")
    script = _script(target, arguments, metric_pattern, options)
    _check_placeholders(script.arguments, found)
    ranks = options.get("num_workers", 1)
    return search(
        script,
        found,
        **{
            "name": Path(target).stem,
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


def space_of(params: Sequence[str]) -> dict[str, Any]:
    """Return the search space of parameters such as ``lr=loguniform(1e-4, 1e-1)``. Raise one SpecError for all mistakes."""
    mistakes = ErrorCollector()
    found: dict[str, Any] = {}
    for text in params:
        with mistakes:
            name, domain = parameter(text)
            if name in found:
                raise SpecError(f"{name} is given twice", "/space")
            found[name] = domain
    mistakes.check()
    return found


def parameter(text: str) -> tuple[str, Any]:
    """Return the name and the domain in a text such as ``width=choice(16, 32)``. Raise SpecError if it is malformed."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SpecError(f"expected NAME=VALUE such as lr=loguniform(1e-4,1e-1), got {text!r}", "/space")
    try:
        tree = ast.parse(value.strip(), mode="eval").body
    except SyntaxError as error:
        if (kind := value.strip().partition("(")[0]) in PRIMITIVES and "(" in value:
            raise SpecError(
                f"{text!r} begins with {kind}( but is malformed: {error.msg}", f"/space/{name.strip()}"
            ) from error
        return name.strip(), value.strip()  # a constant, such as a path
    if not isinstance(tree, ast.Call):
        return name.strip(), _constant(tree, value.strip())
    kind = tree.func.id if isinstance(tree.func, ast.Name) else ast.unparse(tree.func)
    if kind not in PRIMITIVES:
        raise SpecError(f"expected one of {', '.join(PRIMITIVES)}, got {kind!r} in {text!r}", f"/space/{name.strip()}")
    positional = [_constant(part, ast.unparse(part)) for part in tree.args]
    named = {word.arg: _constant(word.value, ast.unparse(word.value)) for word in tree.keywords if word.arg}
    if kind in ("choice", "grid_search") and not (len(positional) == 1 and isinstance(positional[0], list | tuple)):
        positional = [positional]
    try:
        return name.strip(), getattr(space, kind)(*positional, **named)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{text}: {error}", f"/space/{name.strip()}") from error


def _constant(tree: ast.expr, text: str) -> Any:
    """Return the value of a literal. Return any other text unchanged, so that ``choice(adam, sgd)`` needs no quotes."""
    try:
        return ast.literal_eval(tree)
    except ValueError:
        return text
    except TypeError as error:  # a list as a key
        raise SpecError(f"{text!r} is malformed: {error}", "/space") from error


def _script(target: str, arguments: Sequence[str], pattern: str | None, options: Mapping[str, Any]) -> Script:
    path = Path(target)
    if not path.is_file():
        raise EntrypointError(
            f"there is no file {target}; expected a script, FILE.py:FUNCTION or module:function", "/trainable"
        )
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise EntrypointError(f"{target} is neither a .py file nor executable", "/trainable")
    metric = options["metric"]
    if pattern is not None:
        try:
            compiled(pattern, metric)
        except ValueError as error:
            raise SpecError(f"--metric-pattern: {error}", "/metric") from error
    grace_s = float(options.get("stop_grace_s", 10.0))
    imports: tuple[str, ...] = ()
    if options.get("address") is not None and path.suffix == ".py":
        sys.path.insert(0, str(path.parent.absolute()))  # Python looks there for modules that the script imports
        imports = tuple(dict.fromkeys(archives.imports_of(path)))
    return Script(os.path.abspath(path), path.read_bytes(), tuple(arguments), metric, pattern, grace_s, imports)


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


def imported(target: str) -> Any:
    """Return the object that ``FILE.py:NAME`` or ``module:name`` names. Modules in the working directory can be imported.

    Raises:
        EntrypointError: there is no such object, or the module cannot be imported.
    """
    found = function(target)
    if not isinstance(found, str):
        return found
    module, colon, name = found.partition(":")
    if not colon:
        raise EntrypointError(f"expected FILE.py:FUNCTION or module:function, got {target!r}", "/trainable")
    if (here := working_folder()) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise EntrypointError(f"{target} cannot be imported: {error}", "/trainable") from error


def function(target: str) -> Any:
    """Return the function that ``FILE.py:FUNCTION`` names, which is pickled by value. Return ``module:function`` unchanged."""
    file, _, name = target.rpartition(":")
    if not file.endswith(".py"):
        return target
    path = Path(file)
    if not path.is_file():
        raise EntrypointError(f"there is no file {file}", "/trainable")
    module_name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_tuner_run"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # so that the ranks do not need the file
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise EntrypointError(f"{file} has no function {name!r}", "/trainable") from error
