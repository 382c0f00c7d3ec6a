"""`Space`: a checked search space."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tuner.domain.keys import keyed_seed
from tuner.errors import SpecError
from tuner.names import did_you_mean
from tuner.space.build import Builder
from tuner.space.json_form import Reader, Writer, dump, load
from tuner.space.nodes import Dict, Opaque, constants, count, has_function
from tuner.space.parameter import Parameter
from tuner.space.points import Checker
from tuner.space.resolve import Unresolved, call, pending_functions, placeholder, put, resolve, thaw
from tuner.space.words import escape, show

KEPT_TEXT = 32_768
"""The maximum length of the JSON text of a space that is kept. That is some 500 parameters: 50 ms to read, 0.8 MB of memory."""


class Space:
    """A checked search space. It is immutable.

    `parameters` lists its parameters in the order of declaration. A choice comes before the parameters of its
    branches.
    """

    def __init__(self, source: Mapping[str, Any], *, pointer: str = "/space") -> None:
        """Check and compile a space.

        Raises:
            SpecError: the space has mistakes. The error lists all of them, with pointers that begin with `pointer`.
        """
        build = Builder()
        if not isinstance(source, Mapping):
            raise SpecError(f"expected a search space, which is a dict of parameters, got {show(source)}", pointer)
        self._root = build.node(source, "", pointer, None, 0)
        if build.errors:
            raise SpecError(build.errors)
        self._source = source
        self.parameters: list[Parameter] = build.parameters
        self._by_path = {p.path: p for p in self.parameters}

    @classmethod
    def from_python(cls, space: Mapping[str, Any]) -> Space:
        """Return the space that a dict describes.

        The values of the dict are primitives, Ray Tune's objects of the same names, constants, or dicts of these.
        """
        return cls(space)

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], blob: bytes | None = None, *, opaque: bool = False, pointer: str = "/space"
    ) -> Space:
        """Return the space that a JSON form describes.

        Args:
            data: the JSON form.
            blob: the pickled Python objects that the JSON form refers to. It is unpickled, so it must come from a trusted
                source.
            opaque: True to read a space without its Python objects, for display.
            pointer: the JSON pointer to the space in the spec, for error messages.
        """
        if not isinstance(data, Mapping):
            raise SpecError(f"expected a search space, which is an object of parameters, got {show(data)}", pointer)
        text = _text_of(data) if blob is None else None
        if text is not None and len(text) <= KEPT_TEXT:
            return _kept(text, opaque, pointer)
        return cls._from_json(data, blob, opaque, pointer)

    @classmethod
    def _from_json(cls, data: Mapping[str, Any], blob: bytes | None, opaque: bool, pointer: str) -> Space:
        reader = Reader(load(blob, pointer), opaque)
        source = {str(key): reader.value(value, f"{pointer}/{escape(key)}", 1) for key, value in data.items()}
        if reader.errors:
            raise SpecError(reader.errors)
        return cls(source, pointer=pointer)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return Writer().mapping(self._source, "")

    def blob(self) -> bytes | None:
        """Return the Python objects that the JSON form refers to, pickled by cloudpickle, or None if there are none.

        Raises:
            SpecError: some objects cannot be pickled. The error names their parameters, and the parts that cannot be pickled.
        """
        writer = Writer()
        writer.mapping(self._source, "/space")
        if not writer.values:
            return None
        if any(isinstance(value, Opaque) for value in writer.values):
            raise SpecError("this space was read without its Python objects", "/space")
        return dump(writer)

    def __getitem__(self, path: str) -> Parameter:
        return self._by_path[path]

    def __contains__(self, path: object) -> bool:
        return path in self._by_path

    def __len__(self) -> int:
        return len(self.parameters)

    def __repr__(self) -> str:
        return f"Space({self._source!r})"

    def active(self, params: Mapping[str, Any]) -> list[bool]:
        """Return, for each of `parameters`, whether it is active with the choices in `params`."""
        on: dict[str, bool] = {}
        for p in self.parameters:
            on[p.path] = p.condition is None or (
                on[p.condition[0]]
                and p.condition[0] in params
                and self._by_path[p.condition[0]].index(params[p.condition[0]]) == p.condition[1]
            )
        return list(on.values())

    def sample(self, rng: random.Random, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return flat params drawn at random. Active parameters in `given` keep their values."""
        given = given or {}
        return self._fill(lambda p: p.normal_form(given[p.path]) if p.path in given else p.resample(rng))

    def to_unit(self, params: Mapping[str, Any]) -> list[float]:
        """Return the configuration as a point in the unit cube, one coordinate per parameter; 0.5 for an inactive parameter."""
        on = self.active(params)
        return [p.unit(params[p.path]) if yes else 0.5 for p, yes in zip(self.parameters, on, strict=True)]

    def from_unit(self, unit: Sequence[float]) -> dict[str, Any]:
        """Return the flat params at a point of the unit cube. Coordinates of inactive parameters are ignored."""
        place = dict(zip(self._by_path, unit, strict=True))
        return self._fill(lambda p: p.value(place[p.path]))

    def _fill(self, draw: Callable[[Parameter], Any]) -> dict[str, Any]:
        params: dict[str, Any] = {}
        chosen: dict[str, int] = {}
        for p in self.parameters:
            if p.condition is None or chosen.get(p.condition[0]) == p.condition[1]:
                params[p.path] = draw(p)
                if p.kind == "choice":
                    chosen[p.path] = p.index(params[p.path])
        return params

    def config(
        self, params: Mapping[str, Any], seed: int = 0, number: int = 0, *, to_show: bool = False
    ) -> dict[str, Any]:
        """Return the configuration that the user's function gets: nested, with constants and the values of `sample_from`.

        Each function passed to `sample_from` draws from random generators that are seeded by (seed, number, path).

        to_show: put a placeholder where a function passed to `sample_from` fails, instead of raising. Such a trial has
            failed, but it belongs to the result of its search.

        Raises:
            SpecError: params are missing, or a function passed to `sample_from` failed.
        """
        root = resolve(self._root, params)
        pending = dict(pending_functions(root, ()))
        while pending:
            done = 0
            for where, function in list(pending.items()):
                try:
                    value = call(function, root, keyed_seed(seed, "sample_from", number, function.path))
                except Unresolved:
                    continue
                except SpecError:
                    if not to_show:
                        raise
                    value = placeholder(function)
                put(root, where, value)
                del pending[where]
                done += 1
            if not done and to_show:
                for where, function in pending.items():
                    put(root, where, placeholder(function))
                break
            if not done:
                names = ", ".join(sorted(f.path for f in pending.values()))
                raise SpecError(f"these sample_from functions depend on each other: {names}", "/space")
        return thaw(root)  # type: ignore[no-any-return]

    def config_without_functions(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration with None in place of the values of `sample_from`."""
        root = resolve(self._root, params)
        for where, _ in list(pending_functions(root, ())):
            put(root, where, None)
        return thaw(root)  # type: ignore[no-any-return]

    def constants(self) -> dict[str, Any]:
        """Return the values that every configuration shares."""
        return constants(self._root)  # type: ignore[no-any-return]

    def check(self, point: Mapping[str, Any], pointer: str = "") -> dict[str, Any]:
        """Check a point from a user, and return it as flat params. The point may leave out parameters.

        The point may be nested like a configuration, or flat. If it is complete and valid as flat params (such as the params of
        another trial), it is read as flat params. Otherwise the value of a choice is read as a category if it equals
        one, and as an index if not.

        Raises:
            SpecError: some values are unknown, outside their domain, or belong to a branch that is not chosen. The error lists
                all of them.
        """
        if not isinstance(point, Mapping):
            raise SpecError(f"expected a point, which is a dict of values, got {show(point)}", pointer)
        if self._is_flat(point):
            return {p.path: p.normal_form(point[p.path]) for p in self.parameters if p.path in point}
        checker = Checker(self._by_path)
        top = self._root.items if isinstance(self._root, Dict) else {}
        for key, value in point.items():
            where = f"{pointer}/{escape(key)}"
            if key in top:
                checker.node(top[key], value, where)
            elif key in self._by_path:
                checker.parameter(self._by_path[key], None, value, where)
            else:
                checker.errors.append((where, f"not in the search space{did_you_mean(key, [*top, *self._by_path])}"))
        checker.conditions(pointer)
        if checker.errors:
            raise SpecError(checker.errors)
        return {p.path: checker.found[p.path] for p in self.parameters if p.path in checker.found}

    def _is_flat(self, point: Mapping[str, Any]) -> bool:
        """Return True if the point has a valid value for each active parameter, and nothing else."""
        needed: list[str] = []
        chosen: dict[str, int] = {}
        for p in self.parameters:
            if p.condition is None or chosen.get(p.condition[0]) == p.condition[1]:
                needed.append(p.path)
                if p.path not in point or not p.contains(point[p.path]):
                    return False
                if p.kind == "choice":
                    chosen[p.path] = p.index(point[p.path])
        return len(needed) == len(point)

    @property
    def has_grid(self) -> bool:
        """Return True if a parameter is a `grid_search`."""
        return any(p.grid for p in self.parameters)

    @property
    def has_functions(self) -> bool:
        """Return True if the space has a `sample_from`, which may draw another value for each trial."""
        return has_function(self._root)

    def grid(self, choices: bool = False, limit: int | None = None) -> list[dict[str, Any]]:
        """Return all combinations of the values of the grids, as flat params without other parameters.

        If `choices` is true, choices are treated like grids. The parameter declared first varies slowest. If there is no grid,
        the only combination is the empty one. At most `limit` combinations are returned.
        """
        return list(itertools.islice(self._combinations(0, {}, {}, choices), limit))

    def _combinations(
        self, at: int, params: dict[str, Any], chosen: dict[str, int], choices: bool
    ) -> Iterator[dict[str, Any]]:
        while at < len(self.parameters):
            p = self.parameters[at]
            at += 1
            on = p.condition is None or chosen.get(p.condition[0]) == p.condition[1]
            if on and (p.grid or (choices and p.kind == "choice")):
                for i in range(len(p.categories)):
                    yield from self._combinations(at, {**params, p.path: p.at(i)}, {**chosen, p.path: i}, choices)
                return
        yield params

    def readable(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return flat params for display, with labels instead of category indices."""
        known = self._by_path
        return {path: known[path].readable(value) if path in known else value for path, value in params.items()}

    def labels(self) -> dict[str, list[Any]]:
        """Return a dict from path to the labels of the categories, for each choice whose value is an index."""
        return {p.path: p.labels for p in self.parameters if p.kind == "choice" and not p.plain}

    def cardinality(self) -> int | None:
        """Return the number of different configurations, or None if there is no limit."""
        return count(self._root)


def _text_of(data: Mapping[str, Any]) -> str | None:
    """Return the JSON form of a space as text, or None if it has values that JSON does not have."""
    try:
        return json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=64)
def _kept(text: str, opaque: bool, pointer: str) -> Space:
    """Return the space whose JSON form is this text. Many experiments have the same space, and many answers need it."""
    return Space._from_json(json.loads(text), None, opaque, pointer)
