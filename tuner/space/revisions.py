"""The search spaces of an experiment, and the conversion of configurations from an earlier space to the current space.

A user may change the search space of an experiment. The first space is revision 0. Trials keep their configurations. Searchers
and schedulers use those configurations that also lie in the current space.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.domain.experiment import Spec
from tuner.errors import SpecError
from tuner.space.nodes import Const, Dict, List, Node
from tuner.space.parameter import Branch, Parameter
from tuner.space.space import Space
from tuner.space.values import is_scalar
from tuner.space.words import join


@dataclass(frozen=True, slots=True)
class Carried:
    """A configuration that was converted to another space.

    params: the values of the configuration in the new space, as flat params.
    whole: False if an active parameter of the new space has no value.
    """

    params: dict[str, Any]
    whole: bool


class Revisions:
    """The spaces of an experiment, oldest first.

    assumed: path of a new parameter -> the value that trials of earlier spaces are assumed to have for it.
    """

    def __init__(self, spaces: Sequence[Space], assumed: Mapping[str, Any] | None = None) -> None:
        self.spaces = tuple(spaces)
        self.assumed = dict(assumed or {})
        self._links: dict[int, _Link] = {}

    @classmethod
    def of(cls, spec: Spec, blob: bytes | None = None) -> Revisions:
        """Return the revisions of an experiment.

        Args:
            spec: the spec of the experiment.
            blob: the pickled Python objects of the spaces. Without them, the spaces cannot make configurations to train with.
        """
        spaces = (*spec.former_spaces, spec.space)
        return cls([Space.from_json(each, blob, opaque=blob is None) for each in spaces], spec.assumed)

    @property
    def newest(self) -> int:
        """Return the revision of the current space."""
        return len(self.spaces) - 1

    @property
    def present(self) -> Space:
        """Return the current space."""
        return self.spaces[-1]

    def carried(self, params: Mapping[str, Any], revision: int, *, clip: bool = False) -> Carried:
        """Convert a configuration of an earlier space to the current space.

        Parameters are matched by their paths. Categories are matched by their values; branches and objects, by their labels. A
        parameter that the earlier space did not have gets the constant that was in its place, or else the assumed value. Values
        of parameters that the current space does not have are left out.

        Args:
            params: flat params.
            revision: the revision of the space of these params.
            clip: True to move numbers that are out of range to the nearest bound, False to leave them out.
        """
        if revision == self.newest:
            return Carried(dict(params), True)
        if revision not in self._links:
            self._links[revision] = _Link(self.spaces[revision], self.present)
        return self._links[revision].carried(params, self.assumed, clip)

    def inside(self, params: Mapping[str, Any], revision: int | None) -> Mapping[str, Any] | None:
        """Convert a configuration of an earlier space to the current space. Return None if it does not lie there.

        revision: the revision of the configuration's space. None: the newest space that contains it.
        """
        revision = self._number(params) if revision is None else revision
        if revision == self.newest:
            return params
        found = self.carried(params, revision)
        return found.params if found.whole else None

    def holding(self, params: Mapping[str, Any], revision: int | None = None) -> Space:
        """Return the space with this revision. If `revision` is None, return the newest space that contains the params."""
        return self.spaces[min(self._number(params) if revision is None else revision, self.newest)]

    def _number(self, params: Mapping[str, Any]) -> int:
        for number in range(self.newest, 0, -1):
            if _holds(self.spaces[number], params):
                return number
        return 0


def constants(space: Space) -> dict[str, Any]:
    """Return a dict from path to value, for each constant that is a JSON scalar and not in a branch."""
    return dict(_constants(space._root, ""))


def added(before: Space, after: Space) -> list[Parameter]:
    """Return the parameters of `after` for which configurations of `before` have no value."""
    return _Link(before, after).missing


def _holds(space: Space, params: Mapping[str, Any]) -> bool:
    try:
        active = space.active(params)
    except ValueError:  # the value of a choice is not one of its categories
        return False
    wanted = [p for p, on in zip(space.parameters, active, strict=True) if on]
    return all(p.path in params and p.contains(params[p.path]) for p in wanted)


class _Link:
    """Converts configurations from one space ("theirs") to another space ("mine")."""

    def __init__(self, theirs: Space, mine: Space) -> None:
        self._theirs, self._mine = theirs, mine
        self._constants = constants(theirs)
        self._path: dict[str, str] = {}  # path in my space -> path in their space
        self._index: dict[str, dict[int, int]] = {}  # my choice -> index of their category -> index of mine
        self.missing: list[Parameter] = []
        fresh: set[str] = set()  # parameters of branches that their space lacks; none of its trials chose such a branch
        for p in mine.parameters:
            where = p.path
            if p.condition is not None:
                above, index = p.condition
                there = [i for i, j in self._index.get(above, {}).items() if j == index]
                if above in fresh or not there:
                    fresh.add(p.path)
                    continue
                where = f"{self._path[above]}/{there[0]}" + p.path[len(f"{above}/{index}") :]
            if where in theirs and (p.numeric or _comparable(theirs[where], p)):
                self._path[p.path] = where
                if p.kind == "choice" and theirs[where].kind == "choice":
                    self._index[p.path] = _matched(theirs[where], p)
            elif not p.contains(self._constants.get(where, _Nothing)):
                self.missing.append(p)

    def carried(self, params: Mapping[str, Any], assumed: Mapping[str, Any], clip: bool) -> Carried:
        found: dict[str, Any] = {}
        chosen: dict[str, int] = {}
        whole = True
        for p in self._mine.parameters:
            if p.condition is not None and chosen.get(p.condition[0]) != p.condition[1]:
                continue
            value = self._value(p, params, assumed)
            if p.numeric and clip and isinstance(value, int | float) and not isinstance(value, bool):
                value = p.clip(value)
            if not p.contains(value):
                whole = False
                continue
            found[p.path] = p.normal_form(value)
            if p.kind == "choice":
                chosen[p.path] = p.index(found[p.path])
        return Carried(found, whole)

    def _value(self, p: Parameter, params: Mapping[str, Any], assumed: Mapping[str, Any]) -> Any:
        where = self._path.get(p.path)
        if where is None or where not in params:
            constant = self._constants.get(p.path, _Nothing)
            return assumed.get(p.path, _Nothing) if constant is _Nothing else constant
        their = self._theirs[where]
        if their.kind != "choice":
            return params[where]
        if not their.contains(params[where]):
            return _Nothing
        index = their.index(params[where])
        if p.kind == "choice":
            place = self._index[p.path].get(index)
            return _Nothing if place is None else p.at(place)
        return their.categories[index]


class _Nothing:
    """Represents a missing value. No parameter can have this value."""


def _comparable(their: Parameter, mine: Parameter) -> bool:
    """Return True if values of the parameter `their` can be values of the choice `mine`."""
    return their.kind == "choice" or mine.plain


def _matched(their: Parameter, mine: Parameter) -> dict[int, int]:
    """Return a dict from the index of a category in `their` to its index in `mine`. Equal labels are matched in order."""
    names = {name: index for index, name in enumerate(_names(mine))}
    return {index: names[name] for index, name in enumerate(_names(their)) if name in names}


def _names(p: Parameter) -> Iterator[tuple[Any, ...]]:
    """Yield a key for each category: its kind, its value or label, and a number that makes equal labels distinct."""
    before: Counter[tuple[Any, ...]] = Counter()
    for category, label in zip(p.categories, p.labels, strict=True):
        if is_scalar(category):
            name: tuple[Any, ...] = ("value", isinstance(category, bool), category)
        else:
            name = ("branch" if isinstance(category, Branch) else "object", str(label))
        yield (*name, before[name])
        before[name] += 1


def _constants(node: Node, path: str) -> Iterator[tuple[str, Any]]:
    match node:
        case Const(value) if path and is_scalar(value):
            yield path, value
        case Dict(items):
            for key, item in items.items():
                yield from _constants(item, join(path, key))
        case List(items):
            for at, item in enumerate(items):
                yield from _constants(item, join(path, str(at)))


# -- descriptions of changes -------------------------------------------------------------------------------------------


def in_words(before: Space, after: Space, assumed: Mapping[str, Any]) -> str:
    """Describe how a space differs from the previous one: ``lr from uniform(0, 1) to uniform(0, 0.5); dropout is new``."""
    said = []
    for p in after.parameters:
        if p.path not in before:
            said.append(f"{p.path} is new" + (f", and was {assumed[p.path]!r} before" if p.path in assumed else ""))
        elif domain(p) != domain(before[p.path]):
            said.append(f"{p.path} from {domain(before[p.path])} to {domain(p)}")
    said += [f"{p.path} is removed" for p in before.parameters if p.path not in after]
    return "; ".join(said) or "constants only"


def domain(p: Parameter) -> str:
    """Return a parameter's domain as a call: ``uniform(0, 1)``, ``choice(16, 32)``."""
    match p.kind:
        case "choice":
            inside = ", ".join(repr(label) if isinstance(label, str) else str(label) for label in p.labels)
        case "normal":
            inside = f"{p.mean:.15g}, {p.sd:.15g}"
        case _:
            beyond = p.kind == "int" and p.step == 1  # the primitive is declared with an exclusive bound
            inside = f"{p.lower:.15g}, {p.upper + beyond:.15g}"
    step = f", q={p.step:.15g}" if p.step is not None and p.type.startswith("q") else ""
    return f"{p.type}({inside}{step})"


def objects(space: Mapping[str, Any]) -> set[tuple[Any, str]]:
    """Return the Python objects that the JSON form of a space refers to, each as its index and its text.

    Raises:
        SpecError: a reference has no index.
    """
    found: set[tuple[Any, str]] = set()
    stack: list[Any] = [space]
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            if value.get("type") in ("python", "sample_from"):
                if not isinstance(value.get("index"), int):
                    raise SpecError("a Python object cannot be sent as JSON", "/space")
                found.add((value["index"], str(value.get("repr"))))
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return found
