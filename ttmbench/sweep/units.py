"""Units: what a worker does at a time, and what it gives back.

A cell is one unit, or several where that lets workers share it. The last is always the ordinary run of the cell; the
others leave files that such a run finds, as it would find those of a run that was stopped: finished seeds in the cell's
folder of state, blocks of raw scores in the cache. So there is no second way from parts to numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ttmbench.cache.location import cache_folder
from ttmbench.sweep.cells import Cell, cell_from_json

Kind = Literal["groups", "seed", "run"]
State = Literal["done", "failed", "unfit", "stopped"]
"""How a unit ended. ``failed`` is the cell's own failure, the same everywhere. ``unfit``: this place lacks something -
weights, data, a package, memory - that another may have. ``stopped``: it was asked to stop."""


@dataclass(frozen=True)
class Unit:
    """A piece of work.

    Attributes:
        cell: of which.
        kind: ``groups`` puts raw scores of a part of the groups into the cache; ``seed`` runs the test-time stage of
            one seed; ``run`` is the whole run, which takes up what the others left and writes the document.
        part: number of the shard from 0, or the seed; 0 for ``run``.
    """

    cell: Cell
    kind: Kind = "run"
    part: int = 0

    @property
    def key(self) -> tuple[int, Kind, int]:
        """What names it in a sweep."""
        return self.cell.number, self.kind, self.part

    @property
    def name(self) -> str:
        """For a person."""
        shard = " scores" if self.cell.shards == 1 else f" scores {self.part + 1} of {self.cell.shards}"
        what = {"groups": shard, "seed": f" seed {self.part}", "run": ""}
        return f"{self.cell.folder}{what[self.kind]}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `unit_from_json` reads them."""
        return {"cell": self.cell.to_json(), "kind": self.kind, "part": self.part}


@dataclass(frozen=True)
class UnitResult:
    """What a worker gives back.

    Attributes:
        state: how it ended.
        error: one line, of a unit that is not done.
        seconds: wall time.
        phases: step -> wall time, as far as it is known.
        files: path below the sweep's folder -> content of what the unit has written; empty where worker and driver
            have this folder in common.
    """

    state: State
    error: str | None = None
    seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, without files; `result_from_json` reads them."""
        own = {key: value for key, value in vars(self).items() if key != "files"}
        return {**own, "phases": dict(self.phases)}


def unit_from_json(content: Mapping[str, Any]) -> Unit:
    """What `Unit.to_json` wrote."""
    return Unit(cell_from_json(content["cell"]), content["kind"], content["part"])


def result_from_json(content: Mapping[str, Any]) -> UnitResult:
    """What `UnitResult.to_json` wrote."""
    return UnitResult(**content)


def units_of(cell: Cell) -> list[list[Unit]]:
    """The stages of a cell: the units of one can go side by side, and all of them come before the next.

    Args:
        cell: the cell.

    Returns:
        Units, stage by stage; the last stage is the run alone.

    >>> from ttmbench.config import RunConfig
    >>> config = RunConfig(model="tiny-clip", tasks=["shapes_color"], ttm=True, seeds=[0, 1], use_cache="kept")
    >>> cell = Cell(1, "tiny-clip/shapes_color", "tiny-clip", "shapes_color", "", config)
    >>> [[(unit.kind, unit.part) for unit in stage] for stage in units_of(cell)]
    [[('groups', 0)], [('seed', 0), ('seed', 1)], [('run', 0)]]
    """
    config, seeds = cell.config, cell.config.run_seeds
    # Trackers are told of iterations by one process, in order; a folder of adapted models is new for one run.
    apart = config.adapts and len(seeds) > 1 and not config.track and config.save_adapted is None
    kept = cache_folder(config.use_cache) is not None  # else every seed scores for itself
    stages: list[list[Unit]] = []
    if cell.shards > 1 or (apart and kept):
        stages.append([Unit(cell, "groups", shard) for shard in range(cell.shards)])
    if apart:
        stages.append([Unit(cell, "seed", seed) for seed in seeds])
    return [*stages, [Unit(cell)]]
