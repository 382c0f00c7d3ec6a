"""Read and write the JSON form of a space."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from tuner.errors import SpecError
from tuner.names import did_you_mean
from tuner.plurals import counted
from tuner.space.build import MAX_DEPTH
from tuner.space.nodes import Opaque
from tuner.space.primitives import OPTIONS, Domain, domain_of, grid_search
from tuner.space.values import is_json, is_number, is_scalar, plain_value
from tuner.space.words import escape, show
from tuner.usercode.pickling import culprits, dumps


class Reader:
    """Turns the JSON form into primitives and constants.

    Mistakes in the structure of the JSON are reported here; `Builder` reports wrong values.
    """

    def __init__(self, values: list[Any] | None, opaque: bool) -> None:
        self.values = values
        self.opaque = opaque
        self.errors: list[tuple[str, str]] = []

    def value(self, data: Any, pointer: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self.errors.append((pointer, f"nested more than {MAX_DEPTH} deep"))
            return None
        if isinstance(data, list):
            return [self.value(item, f"{pointer}/{i}", depth + 1) for i, item in enumerate(data)]
        if not isinstance(data, Mapping):
            return data
        kind = data.get("type")
        if isinstance(kind, str):
            return self._typed(kind, data, pointer, depth)
        if len(data) == 1 and isinstance(data.get("grid_search"), list):
            return grid_search(self.value(data["grid_search"], f"{pointer}/grid_search", depth + 1))
        return {str(k): self.value(v, f"{pointer}/{escape(k)}", depth + 1) for k, v in data.items()}

    def _typed(self, kind: str, data: Mapping[str, Any], pointer: str, depth: int) -> Any:
        if kind not in OPTIONS:
            hint = did_you_mean(kind, OPTIONS) or '; a constant is written {"type": "const", "value": ...}'
            self.errors.append((f"{pointer}/type", f"unknown type {kind!r}{hint}"))
            return None
        needed, optional = OPTIONS[kind]
        wrong = [k for k in data if k != "type" and k not in needed + optional]
        missing = [k for k in needed if k not in data]
        for key in wrong:
            hint = did_you_mean(key, needed + optional) or f"; {kind} takes {', '.join(needed + optional)}"
            self.errors.append((f"{pointer}/{escape(key)}", f"unknown{hint}"))
        for key in missing:
            self.errors.append((f"{pointer}/{key}", f"{kind} needs {key}"))
        if wrong or missing:
            return None
        match kind:
            case "const":
                if not is_json(data["value"]):
                    self.errors.append((f"{pointer}/value", "not a JSON value"))
                return Domain("const", {"value": data["value"]})
            case "tuple":
                items = data["items"]
                if not isinstance(items, list):
                    self.errors.append((f"{pointer}/items", f"expected a list, got {show(items)}"))
                    return None
                return tuple(self.value(items, f"{pointer}/items", depth + 1))
            case "python":
                return self._object(data, pointer)
            case "sample_from":
                return Domain("sample_from", {"func": self._object(data, pointer)})
            case "choice" | "grid_search":
                name = needed[0]
                options = {k: v for k, v in data.items() if k != "type"}
                if isinstance(options[name], list):
                    options[name] = self.value(options[name], f"{pointer}/{name}", depth + 1)
                return Domain(kind, options)
            case _:
                return Domain(kind, {k: v for k, v in data.items() if k != "type"})

    def _object(self, data: Mapping[str, Any], pointer: str) -> Any:
        index = data["index"]
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            self.errors.append((f"{pointer}/index", f"expected an index, got {show(index)}"))
            return None
        if self.opaque:
            return Opaque(index, str(data.get("repr", "a Python object")))
        if self.values is None:
            self.errors.append((pointer, "a Python object cannot be sent as JSON; run this space from Python"))
            return None
        if index >= len(self.values):
            self.errors.append(
                (f"{pointer}/index", f"this space has only {counted(len(self.values), 'Python object')}")
            )
            return None
        return self.values[index]


class Writer:
    """Turns primitives and constants into the JSON form.

    The writer also collects the values that JSON cannot express, and a pointer to each of them.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.places: list[str] = []  # the pointer to each of the values

    def mapping(self, source: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        return {
            key: {"type": "const", "value": item}
            if key == "type" and isinstance(item, str)
            else self.value(item, f"{pointer}/{escape(key)}")
            for key, item in source.items()
        }

    def value(self, value: Any, pointer: str) -> Any:
        value = domain_of(value)
        match value:
            case Domain(type="sample_from", options=options):
                return self._object("sample_from", options["func"], pointer)
            case Domain(type="const", options=options):
                return {"type": "const", "value": options["value"]}
            case Domain(type=kind, options=options):
                return {"type": kind} | {
                    name: self._option(option, f"{pointer}/{name}") for name, option in options.items()
                }
            case Mapping():
                return self.mapping(value, pointer)
            case list() if type(value) is list:
                return self._items(value, pointer)
            case tuple() if type(value) is tuple:
                return {"type": "tuple", "items": self._items(value, pointer)}
            case _ if is_scalar(value):
                return plain_value(value)
            case _:
                return self._object("python", value, pointer)

    def _option(self, option: Any, pointer: str) -> Any:
        if is_scalar(option):
            return plain_value(option)
        if is_number(option):
            return int(option) if isinstance(option, Integral) else float(option)
        return self._items(option, pointer)

    def _items(self, items: Iterable[Any], pointer: str) -> list[Any]:
        return [self.value(item, f"{pointer}/{i}") for i, item in enumerate(items)]

    def _object(self, kind: str, value: Any, pointer: str) -> dict[str, Any]:
        self.values.append(value)
        self.places.append(pointer)
        text = value.text if isinstance(value, Opaque) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
        return {"type": kind, "index": len(self.values) - 1, "repr": text[:200]}


_RAY_REFERENCE = (
    "a reference to Ray's object store becomes invalid when its Ray cluster shuts down: search over a name or a number, and "
    "pass the objects to the function with tuner.with_parameters"
)


def _is_ray_reference(value: Any) -> bool:
    return type(value).__name__ == "ObjectRef" and type(value).__module__.partition(".")[0] == "ray"


def dump(writer: Writer) -> bytes:
    """Pickle the writer's values.

    Raises:
        SpecError: some values cannot be pickled. The error lists each of them, with the part that cannot be pickled.
    """
    if references := [at for at, value in zip(writer.places, writer.values, strict=True) if _is_ray_reference(value)]:
        raise SpecError([(at, _RAY_REFERENCE) for at in references])
    try:
        return dumps(writer.values)
    except Exception as whole:
        errors = []
        for pointer, value in zip(writer.places, writer.values, strict=True):
            try:
                dumps(value)
            except Exception as error:
                because = f" because of {', '.join(found)}" if (found := culprits(value)) else ""
                name = getattr(value, "__qualname__", None) or show(value)
                what = f"{name} cannot be pickled for other processes{because}"
                errors.append((pointer, f"{what}: {type(error).__name__}: {error}"))
        raise SpecError(errors or f"cannot be pickled for other processes: {whole}", "/space") from whole


def load(blob: bytes | None, pointer: str) -> list[Any] | None:
    if blob is None:
        return None
    try:
        values = pickle.loads(blob)
    except Exception as error:  # unpickling runs other people's code, which can raise anything
        raise SpecError(f"the Python objects of this space cannot be loaded: {error!r}", pointer) from error
    if not isinstance(values, list):
        raise SpecError("the pickled Python objects of this space are not valid", pointer)
    return values
