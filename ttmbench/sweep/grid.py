"""Grids of a sweep's plan: a setting with a list of values for some keys becomes one setting for each combination."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product

from ttmbench._util.option_values import with_own_options
from ttmbench.config import PART_KINDS, RunConfig, TTMConfig, parse_pairs
from ttmbench.errors import UsageError
from ttmbench.methods.settings import arguments
from ttmbench.plugins.registry import Registry
from ttmbench.types import Record

MOST = 1000
"""Combinations of the values of one setting."""
PAIRS = ("model_args", "task_args", "ttm_args", "method_args", "track_args", "rerank")
"""Options with settings of their own, by name."""

Grid = Mapping[str, Sequence[object]]
Target = tuple[str, str | None]
"""An option, or an option of `PAIRS` and one of its keys."""
_TTM = "ttm"
_STAGES = (_TTM, "simple_match", "oracle")
_TTM_KEYS = tuple(key for key in TTMConfig.model_fields if key != "part_args")
_LONGEST = 120  # characters of a name


@dataclass(frozen=True)
class Setting:
    """A setting of a plan.

    Attributes:
        name: with the values of a grid, ``NAME lr=0.001 train=norm``; also its folder. Empty for the only one.
        base: its name without values.
        options: of its cells.
        varied: what its grid sets, which nothing else may.
    """

    name: str
    base: str
    options: Record
    varied: frozenset[Target] = frozenset()

    @property
    def names(self) -> list[str]:
        """What globs of a plan are compared with."""
        return list(dict.fromkeys((self.name, self.base)))


def combined(
    name: str,
    options: Record,
    grids: dict[str, Grid],
    shared: Record,
    registry: Registry,
    checked: Callable[[Mapping[str, object], str], Record],
) -> Iterator[Setting]:
    """One setting for each combination of the values of some grids; the setting itself without any.

    Args:
        name: of the setting.
        options: of the setting.
        grids: where each stands in the plan, for messages -> key -> values.
        shared: options of every cell.
        registry: of methods.
        checked: reads options as the command line does.

    Raises:
        UsageError: a key that is unknown, ambiguous, given twice or fixed in the setting; a value that is given twice;
            or more than `MOST` combinations.
    """
    keys = _keys(grids)
    counted = math.prod(len(values) for grid in grids.values() for values in grid.values())
    if counted > MOST:
        raise UsageError(f"{next(reversed(grids))}: {counted} combinations; at most {MOST} are allowed")
    names: set[str] = set()
    for values in product(*(grid[key] for grid in grids.values() for key in grid)):
        chosen = dict(zip(keys, values, strict=True))
        grid_options: Record = {}
        for key in (key for key in chosen if _as_option(key) in RunConfig.model_fields):
            grid_options |= checked({key: chosen[key]}, keys[key])
        methods = _Methods(registry, merged([shared, options, grid_options]))
        targets: dict[str, Target] = {}
        for key, value in chosen.items():
            option, of_it = targets[key] = methods.target(key, keys[key])
            if of_it is not None:
                grid_options.setdefault(option, {})[of_it] = value
        varied = frozenset(targets_of(grid_options))
        _check_free(targets, targets_of(options), varied, keys)
        if methods.turns_ttm_on and any(option == "ttm_args" for option, _ in targets.values()):
            grid_options[_TTM] = True
        full = _name(name, chosen)
        if full in names:
            raise UsageError(f"{next(reversed(grids))}: two combinations are called {full}; give each value once")
        names.add(full)
        yield Setting(full, name, merged([options, grid_options]), varied)


def merged(layers: Sequence[Record]) -> Record:
    """Merges layers, of which later ones override; mappings are merged by their keys."""
    merged: Record = {}
    for layer in layers:
        for key, value in layer.items():
            merged[key] = {**merged.get(key, {}), **value} if key in PAIRS else value
    return merged


def targets_of(options: Record) -> set[Target]:
    """What options set: each, or each of its keys."""
    targets: set[Target] = set()
    for option, value in options.items():
        for key in value if option in PAIRS else (None,):
            is_ttm = option == "method_args" and str(key).startswith(f"{_TTM}.")
            targets.add(("ttm_args", str(key)[len(_TTM) + 1 :]) if is_ttm else (option, key))
    return targets


def in_words(target: Target) -> str:
    """A target for messages."""
    return target[0] if target[1] is None else f"{target[0]} {target[1]}"


class _Methods:
    """The methods of a setting, TTM among them, and what keys of a grid mean with them."""

    def __init__(self, registry: Registry, options: Record) -> None:
        asked = with_own_options(options) if options.get("methods") else options
        self._registry, names = registry, list(asked.get("methods", ()))
        states_ttm = any(stage in asked for stage in _STAGES)
        self.turns_ttm_on = not names and not states_ttm
        has_ttm = not names or any(asked.get(stage) for stage in _STAGES)
        self._names = [*names, *([_TTM] if has_ttm else [])]

    def target(self, key: str, where: str) -> Target:
        """What a key sets; UsageError if it is unknown or ambiguous."""
        head, dot, rest = key.partition(".")
        if dot and head not in self._names and head not in PART_KINDS:
            raise UsageError(f"{where}: '{key}': '{head}' is not a method of the setting ({', '.join(self._names)})")
        if dot and head in self._names:
            return self._of(head, rest, f"{where}: '{key}'")
        is_option = not dot and _as_option(key) in RunConfig.model_fields
        having = [name for name in self._names if self._has(name, key, where)]
        if is_option and not having:
            return _as_option(key), None
        if is_option:
            ways = " or ".join(f"{name}.{key}" for name in having)
            raise UsageError(f"{where}: '{key}' is an option of the run and a setting of a method; write {ways} for it")
        if not having:
            near = get_close_matches(key, [*RunConfig.model_fields, *self._known()], n=1)
            known = "it must be an option of `ttmbench run` or a setting of the setting's method"
            raise UsageError(f"{where}: unknown key '{key}'; " + (f"did you mean '{near[0]}'?" if near else known))
        if len(self._names) > 1:
            ways = " or ".join(f"'{name}.{key}'" for name in having)
            raise UsageError(f"{where}: '{key}' is ambiguous, as the setting has several methods; write {ways}")
        return self._of(having[0], key, f"{where}: '{key}'")

    def _of(self, method: str, key: str, where: str) -> Target:
        if not self._has(method, key, where):
            near = get_close_matches(key, self._settings(method, where), n=1)
            known = f"known: {', '.join(self._settings(method, where)) or 'none'}"
            raise UsageError(f"{where}: unknown setting of {method}; {f'did you mean {near[0]}?' if near else known}")
        return ("ttm_args", key) if method == _TTM else ("method_args", f"{method}.{key}")

    def _has(self, method: str, key: str, where: str) -> bool:
        is_of_a_part = "." in key and key.partition(".")[0] in PART_KINDS
        settings = self._settings(method, where)
        return key in settings or (is_of_a_part and set(PART_KINDS) <= {*settings})

    def _settings(self, method: str, where: str) -> Sequence[str]:
        if method == _TTM:
            return _TTM_KEYS
        try:
            return [argument.name for argument in arguments(self._registry.method(method))]
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None

    def _known(self) -> Iterator[str]:
        for name in self._names:
            yield from self._settings(name, "")


def _keys(grids: Mapping[str, Grid]) -> dict[str, str]:
    """Each key and the grid that it is in; UsageError for a key of two grids, or a value that is given twice."""
    keys: dict[str, str] = {}
    for where, grid in grids.items():
        for key, values in grid.items():
            if key in keys:
                raise UsageError(f"{where}: '{key}' is in the grid of the setting too; give it once")
            keys[key], seen = where, set[str]()
            for value in values:
                same = repr(_read(value))
                if same in seen:
                    raise UsageError(f"{where}: '{key}' has the value {_text(value)} twice; give each value once")
                seen.add(same)
    return keys


def _read(value: object) -> object:
    """A value as it is compared with others: a number by its size, in whatever way it is written."""
    if isinstance(value, str):
        try:
            value = parse_pairs(f"_={value}")["_"]
        except UsageError:
            return value
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_free(
    targets: Mapping[str, Target], fixed: AbstractSet[Target], varied: AbstractSet[Target], keys: Mapping[str, str]
) -> None:
    """UsageError for two keys of grids that mean the same, or a key that is fixed in the setting."""
    first: dict[Target, str] = {}
    for key, target in targets.items():
        if target in first:
            raise UsageError(f"{keys[key]}: '{first[target]}' and '{key}' are the same; give one of them")
        first[target] = key
        if target in fixed or (target[1] is None and target[0] in PAIRS and fixed & varied):
            raise UsageError(f"{keys[key]}: '{key}' is also fixed in the setting ({in_words(target)}); give it once")


def _as_option(key: str) -> str:
    return key.replace("-", "_")


def _name(name: str, chosen: Mapping[str, object]) -> str:
    """The name of a combination, which is also a folder's.

    >>> _name("tent", {"lr": 1e-3, "train": "lora:4", "betas": [0.9, 0.99]}), _name("raw", {})
    ('tent lr=0.001 train=lora_4 betas=0.9+0.99', 'raw')
    """
    words = [f"{key}={_text(value)}" for key, value in chosen.items()]
    full = " ".join([*([name] if name else []), *(re.sub(r"[^A-Za-z0-9._+=-]", "_", word) for word in words)])
    full = full.rstrip(".") if words else full
    if len(full) <= _LONGEST:
        return full
    return f"{full[: _LONGEST - 9]}-{hashlib.sha256(repr([name, words]).encode()).hexdigest()[:8]}"


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "+".join(map(_text, value))
    if isinstance(value, Mapping):
        return "+".join(f"{key}={_text(child)}" for key, child in value.items())
    return str(value)
