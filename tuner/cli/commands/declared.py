"""Derive options of commands from the declarations in `tuner.domain.experiment`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import typer

from tuner.domain.experiment import SECTIONS


def with_options(*sections: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of these sections of a spec.

    The command gets those that the user has given, as ``**options`` unless its signature names them. An option whose value
    is a mapping is left out.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        hints = typing.get_type_hints(command, include_extras=True)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        own = {one.name: one.replace(annotation=hints[one.name]) for one in named}
        more = {one.name: one for section in sections for one in _parameters(section) if one.name not in own}

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            command(**{name: value for name, value in given.items() if name in own or value is not None})

        parameters = {**own, **more}
        vars(wrapper)["__signature__"] = signature.replace(parameters=list(parameters.values()))
        wrapper.__annotations__ = {name: one.annotation for name, one in parameters.items()}
        return wrapper

    return decorate


def _parameters(section: str) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(SECTIONS[section])
    for option in dataclasses.fields(SECTIONS[section]):
        kind: Any = next(one for one in _alternatives(hints[option.name]) if one is not type(None))
        if typing.get_origin(kind) not in (None, typing.Literal):  # a mapping
            continue
        words = _words_beside_a_number(hints[option.name])
        names = [f"--{option.name.replace('_', '-')}"] if kind is bool and not option.default else []
        most = option.metadata.get("le")
        default = typer.Option(
            None,
            *names,
            help=_help(option),
            min=option.metadata.get("ge"),
            max=most if most is not None and most < 2**31 - 1 else None,
            parser=_number_or(words) if words else None,
            metavar="|".join(["INTEGER", *words]) if words else None,
            rich_help_panel=f"Options of {section}",
        )
        yield inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind | None)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _words_beside_a_number(hint: Any) -> list[str]:
    """Return the words that an integer option also accepts, such as "auto"."""
    kinds = _alternatives(hint)
    literals = [kind for kind in kinds if typing.get_origin(kind) is typing.Literal] if int in kinds else []
    return [str(word) for kind in literals for word in typing.get_args(kind)]


def _number_or(words: list[str]) -> Callable[[str], int | str]:
    def number_or_word(text: str) -> int | str:
        try:
            return text if text in words else int(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is neither an integer nor {' or '.join(words)}") from None

    return number_or_word


def _help(option: dataclasses.Field[Any]) -> str:
    """Return the description of an option for a command. A command leaves an option out where JSON has null."""
    about = str(option.metadata["description"])
    if option.default is None:
        return about.replace("null:", "default:")
    return re.sub(r"[;.] null: [^;.]*", "", about)
