"""Grids of a sweep's plan: a setting with a list of values for some keys becomes one setting for each combination."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ttmbench.config import RunConfig
from ttmbench.errors import UsageError
from ttmbench.types import Record

MOST = 1000
"""Combinations of the values of one setting."""
PAIRS = ("model_args", "task_args", "ttm_args", "method_args", "track_args", "rerank")
"""Options with settings of their own, by name."""
_STAGES = ("ttm", "simple_match", "oracle")
_LONGEST = 120  # characters of a name


@dataclass(frozen=True)
class Setting:
    """A setting of a plan."""

    name: str  # with the values of a grid, ``NAME lr=0.001 train=norm``; also its folder; empty for the only one
    base: str  # its name without values
    options: Record  # of its cells
    varied: Record  # what its grid sets, over everything else


def combined(
    name: str,
    options: Record,
    grid: Mapping[str, Sequence[object]],
    shared: Record,
    checked: Callable[[Mapping[str, object], str], Record],
    where: str,
) -> Iterator[Setting]:
    """One setting for each combination of a grid's values; the setting itself without any.

    Args:
        name: of the setting.
        options: of the setting.
        grid: key -> values. A key is an option of a run, ``METHOD.KEY``, or a setting of the only method, which is TTM
            where none is named.
        shared: options of every cell.
        checked: reads options as the command line does.
        where: the grid stands, for messages.

    Raises:
        UsageError: a key that several methods could mean, or more than `MOST` combinations.
    """
    if (count := math.prod(map(len, grid.values()))) > MOST:
        raise UsageError(f"{where}: {count} combinations; at most {MOST} are allowed")
    for values in product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        of_run = {key: value for key, value in chosen.items() if key.replace("-", "_") in RunConfig.model_fields}
        varied = checked(of_run, where)
        asked = merged([shared, options, varied])
        methods = list(asked.get("methods", ()))
        if "ttm" not in methods and (not methods or any(map(asked.get, _STAGES))):
            methods.append("ttm")
        for key in chosen.keys() - of_run.keys():
            head, _, rest = key.partition(".")
            method, setting = (head, rest) if head in methods else (methods[0], key)
            if head not in methods and len(methods) > 1:
                ways = " or ".join(f"'{method}.{key}'" for method in methods)
                raise UsageError(f"{where}: '{key}' is ambiguous, as the setting has several methods; write {ways}")
            if method != "ttm":
                varied.setdefault("method_args", {})[f"{method}.{setting}"] = chosen[key]
                continue
            varied.setdefault("ttm_args", {})[setting] = chosen[key]
            if not asked.keys() & {*_STAGES, "methods"}:
                varied["ttm"] = True
        yield Setting(_name(name, chosen), name, options, varied)


def merged(layers: Sequence[Record]) -> Record:
    """Merges layers, of which later ones override; mappings are merged by their keys."""
    merged: Record = {}
    for layer in layers:
        for key, value in layer.items():
            merged[key] = {**merged.get(key, {}), **value} if key in PAIRS else value
    return merged


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
