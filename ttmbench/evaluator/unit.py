"""Units of work: what a process does at a time, of one run or of a sweep, and what it says of it.

The run of one task is one unit, or several where that lets processes share it. The last is always the ordinary run; the
others leave files that such a run finds, as it would find those of a run that was stopped: finished seeds in its folder
of state, blocks of raw scores in the cache. So there is no second way from parts to numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from ttmbench.cache.entry import cache_folder
from ttmbench.config import RunConfig
from ttmbench.evaluator.settings import model_settings

Kind = Literal["load", "groups", "seed", "run"]
State = Literal["done", "failed", "unfit", "stopped"]
"""How a unit ended. ``failed`` is the cell's own failure, the same everywhere. ``unfit``: this place lacks something -
weights, data, a package, memory - that another may have. ``stopped``: it was asked to stop."""
DOCUMENT = "results.json"


@dataclass(frozen=True)
class Cell:
    """One task of a run: in a sweep one model, one task and one setting, which is an ordinary run with its own files.

    Attributes:
        number: from 1, in the order of the plan; what ``--cell`` names.
        folder: where it writes, below the sweep's folder: ``[setting/]model/task``, with slashes. Also its name.
        model: what results call the model.
        task: name of the task.
        setting: name of the setting; empty where the plan has none.
        config: the run; `config_at` says where it writes.
        shards: into how many parts the scoring of a pair model or a server is cut.
        command: the command line, for the record.
        path: of the results document, where it is not that of a sweep's cell.
    """

    number: int
    folder: str
    model: str
    task: str
    setting: str
    config: RunConfig
    shards: int = 1
    command: tuple[str, ...] = ()
    path: str | None = None

    @property
    def document(self) -> str:
        """The results document, below the sweep's folder."""
        return self.path or f"{self.folder}/{DOCUMENT}"

    @property
    def model_key(self) -> str:
        """What cells of the same loaded model have in common."""
        config = self.config
        drawn = config.seed if config.deterministic else None  # of weights that are drawn at random
        made_of = [config.model, config.model_args, model_settings(config), drawn]
        return json.dumps(made_of, sort_keys=True, default=str)

    def config_at(self, root: Path) -> RunConfig:
        """The run as it writes below a sweep's folder."""
        return self.config.model_copy(update={"output_path": str(root / self.document)})


@dataclass(frozen=True)
class Unit:
    """A piece of work.

    Attributes:
        cell: of which.
        kind: ``load`` loads the model; ``groups`` puts raw scores of a part of the groups into the cache; ``seed`` runs
            the test-time stage of one seed; ``run`` is the whole run, which takes up what the others left and writes
            the document.
        part: number of the shard from 0, or the seed; 0 for ``load`` and ``run``.
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
        what = {"load": " model", "groups": shard, "seed": f" seed {self.part}", "run": ""}
        return f"{self.cell.folder}{what[self.kind]}"

    def to_json(self) -> object:
        """As JSON values; `unit_from_json` reads them."""
        return _UNIT.dump_python(self, mode="json")


_UNIT = TypeAdapter(Unit)


def unit_from_json(content: object) -> Unit:
    """What `Unit.to_json` wrote."""
    return _UNIT.validate_python(content)


@dataclass(frozen=True)
class UnitResult:
    """What a worker gives back: how a unit ended, one line on why if it is not done, and its wall time in seconds."""

    state: State
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Said:
    """A line of a worker process: it listens, a step of work has ended, what it is at, or what became of its unit."""

    ready: bool = False
    step: bool = False
    progress: str | None = None
    result: UnitResult | None = None


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
    is_cached = cache_folder(config.use_cache) is not None  # else every seed scores for itself
    stages: list[list[Unit]] = []
    if cell.shards > 1 or (apart and is_cached):
        stages.append([Unit(cell, "groups", shard) for shard in range(cell.shards)])
    if apart:
        stages.append([Unit(cell, "seed", seed) for seed in seeds])
    return [*stages, [Unit(cell)]]
