"""A cell of a sweep: one model, one task, one setting. It is an ordinary run, with files of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ttmbench.config import RunConfig, make_run_config
from ttmbench.evaluator.settings import model_settings

DOCUMENT = "results.json"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        number: from 1, in the order of the plan; what ``--cell`` names.
        folder: where it writes, below the sweep's folder: ``[setting/]model/task``, with slashes. Also its name.
        model: what results call the model.
        task: name of the task.
        setting: name of the setting; empty where the plan has none.
        config: the run, of one task, without an output path.
        shards: into how many parts the scoring of a pair model or a server is cut.
        command: the command line, for the record.
    """

    number: int
    folder: str
    model: str
    task: str
    setting: str
    config: RunConfig
    shards: int = 1
    command: tuple[str, ...] = ()

    @property
    def document(self) -> str:
        """The results document, below the sweep's folder."""
        return str(PurePosixPath(self.folder, DOCUMENT))

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

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for who sends it to a process; `cell_from_json` reads them."""
        own = {key: value for key, value in vars(self).items() if key != "config"}
        return {
            **own,
            "command": list(self.command),
            "config": self.config.model_dump(mode="json"),
        }


def cell_from_json(content: Mapping[str, Any]) -> Cell:
    """What `Cell.to_json` wrote."""
    config = make_run_config(content["config"], "a cell")
    return Cell(**{**content, "config": config, "command": tuple(content["command"])})
