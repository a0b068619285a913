"""Units of work: what a worker process does at a time for a run or a sweep, and how it ends.

Scoring and the seeds of a task can be units of their own; the last unit is always the ordinary run. The others leave
files that this run finds as it would those of a stopped run: finished seeds, and blocks of raw scores in the cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from ttmbench.cache.folder import cache_folder
from ttmbench.config import RunConfig
from ttmbench.evaluator.adapters import model_settings

Kind = Literal["load", "groups", "seed", "run"]
State = Literal["done", "failed", "unfit", "stopped"]
"""How a unit ended. ``failed``: it fails on every machine. ``unfit``: this machine lacks something - weights, data, a
package, memory - that another may have. ``stopped``: it was asked to stop."""


@dataclass(frozen=True)
class Cell:
    """One model, task and setting of a sweep: an ordinary run of one task with its own files."""

    number: int  # from 1, in the order of the plan; what ``--cell`` takes
    folder: str  # where it writes, below the sweep's folder: ``[setting/]model/task``; also its name
    task: str
    setting: str  # its name; empty where the plan has none
    config: RunConfig  # the run; `config_at` adds where it writes
    shards: int = 1  # number of units into which the scoring of a pair model or a server is divided
    command: tuple[str, ...] = ()  # the command line, for the record
    path: str | None = None  # of the results document, where it is not that of a sweep's cell
    trains: bool = False  # whether a method of ``methods`` is trained, seed by seed, beside what ``adapts`` says

    @property
    def document(self) -> str:
        """Path of the results document below the sweep's folder."""
        return self.path or f"{self.folder}/results.json"

    @property
    def model_key(self) -> str:
        """Equal for cells that use the same loaded model."""
        config = self.config
        drawn = config.seed if config.deterministic else None  # of weights that are drawn at random
        made_of = [config.model, config.model_args, model_settings(config), drawn]
        return json.dumps(made_of, sort_keys=True, default=str)

    def config_at(self, root: Path) -> RunConfig:
        """The run as it writes below a sweep's folder."""
        return self.config.model_copy(update={"output_path": str(root / self.document)})


@dataclass(frozen=True)
class Unit:
    """A piece of work of a cell."""

    cell: Cell
    # to load the model, put some raw scores into the cache, run the methods of one seed, or do the whole run
    kind: Kind = "run"
    part: int = 0  # number of the shard from 0, or the seed

    @property
    def key(self) -> tuple[int, Kind, int]:
        """Identifies it in a sweep."""
        return self.cell.number, self.kind, self.part

    @property
    def name(self) -> str:
        """For messages."""
        shard = " scores" if self.cell.shards == 1 else f" scores {self.part + 1} of {self.cell.shards}"
        suffixes = {"load": " model", "groups": shard, "seed": f" seed {self.part}", "run": ""}
        return f"{self.cell.folder}{suffixes[self.kind]}"


UNIT = TypeAdapter(Unit)
"""Reads and writes units as JSON."""


@dataclass(frozen=True)
class UnitResult:
    """How a unit ended, one line on why if it is not done, and its wall time in seconds."""

    state: State
    error: str | None = None
    seconds: float = 0.0


def units_of(cell: Cell) -> list[list[Unit]]:
    """The stages of a cell: units of one stage can run at the same time, and all of them before the next stage.

    >>> from ttmbench.config import RunConfig
    >>> config = RunConfig(model="tiny-clip", tasks=["shapes_color"], ttm=True, seeds=[0, 1], use_cache="cache")
    >>> cell = Cell(1, "tiny-clip/shapes_color", "shapes_color", "", config)
    >>> [[(unit.kind, unit.part) for unit in stage] for stage in units_of(cell)]
    [[('groups', 0)], [('seed', 0), ('seed', 1)], [('run', 0)]]
    """
    config, seeds = cell.config, cell.config.run_seeds
    # Trackers receive iterations from one process, in order; a folder of adapted models is new for one run.
    trains = bool(config.own_columns) or cell.trains
    divides_seeds = trains and len(seeds) > 1 and not config.track and config.save_adapted is None
    is_cached = cache_folder(config.use_cache) is not None  # else every seed scores for itself
    stages: list[list[Unit]] = []
    if cell.shards > 1 or (divides_seeds and is_cached):
        stages.append([Unit(cell, "groups", shard) for shard in range(cell.shards)])
    if divides_seeds:
        stages.append([Unit(cell, "seed", seed) for seed in seeds])
    return [*stages, [Unit(cell)]]
