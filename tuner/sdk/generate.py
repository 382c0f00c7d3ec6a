"""Write the options of `scaling` and `limits` into the signature of `tuner.run`: ``python -m tuner.sdk.generate``.

They are declared in `tuner/domain/experiment.py`. Editors and type checkers need them written out.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tuner.domain.experiment import Limits, Scaling

TARGET = Path(__file__).with_name("run.py")
BEFORE, AFTER = "search_alg", "seed"
"""The parameters of `tuner.run` just before and just after the generated ones."""
WIDER = {"num_workers": "int | Mapping[str, int]"}
"""Parameters that accept more types in Python than in JSON."""


def generated() -> str:
    """Return the source of `tuner/sdk/run.py` with the declared options, formatted by ruff."""
    options = list(_options())
    text = TARGET.read_text(encoding="utf-8")
    lines = "".join(f"    {name}: {annotation} = {default!r},\n" for name, annotation, default, _ in options)
    text = re.sub(rf"(\n    {BEFORE}: [^\n]*\n).*?(?=    {AFTER}: )", rf"\1{lines}", text, count=1, flags=re.DOTALL)
    about = "".join(_described(name, words) for name, _, _, words in options).replace("\\", r"\\")
    entry = rf"(\n        {BEFORE}: [^\n]*\n(?: {{9,}}[^\n]*\n)*).*?(?=        {AFTER}: )"
    text = re.sub(entry, rf"\1{about}", text, count=1, flags=re.DOTALL)
    run = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(run, input=text, capture_output=True, text=True, check=True).stdout


def _options() -> Iterator[tuple[str, str, object, str]]:
    """Yield the name, the annotation, the default and the description of each option."""
    for section in (Scaling, Limits):
        [declaration] = ast.parse(inspect.getsource(section)).body
        assert isinstance(declaration, ast.ClassDef)
        annotations = {
            line.target.id: ast.unparse(line.annotation)
            for line in declaration.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for option in dataclasses.fields(section):
            annotation, default = WIDER.get(option.name, annotations[option.name]), option.default
            if default is dataclasses.MISSING:  # an empty mapping, which is written as None
                annotation, default = f"{annotation} | None", None
            yield option.name, annotation, default, option.metadata["description"]


def _described(name: str, about: str) -> str:
    """Return a parameter's entry in the docstring, with JSON's null, true and false as in Python."""
    for json, python in (("null", "None"), ("true", "True"), ("false", "False")):
        about = re.sub(rf"\b{json}\b", python, about)
    about = re.sub(r"\b(?:tuner\.[\w.]*\w|\w+_\w+)\b", r"`\g<0>`", about)
    wrapper = textwrap.TextWrapper(120, " " * 8, " " * 12, break_long_words=False, break_on_hyphens=False)
    return "".join(f"{line}\n" for line in wrapper.wrap(f"{name}: {about}."))


if __name__ == "__main__":
    TARGET.write_text(generated(), encoding="utf-8")
