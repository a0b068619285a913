"""Weights & Biases: a run of its own beside any that the program has, online or (``mode=offline``) in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttmbench._util.files import to_json
from ttmbench.plugins.trackers.series import COLUMNS, result_rows


class WandbSink:
    """Writes curves with steps of their own, final numbers as summary, a table and an artifact."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import wandb

        self._wandb: Any = wandb
        self._settings = dict(settings)
        self._curves: set[str] = set()

    def open(self, config: Mapping[str, Any]) -> None:
        """Begins a run; what W&B takes down by itself (command line, output, code) may hold secrets, so that is off."""
        settings = self._wandb.Settings(
            console="off", x_disable_meta=True, disable_git=True, disable_code=True, x_save_requirements=False
        )
        if "tags" in self._settings:
            tags = self._settings["tags"]
            self._settings["tags"] = [tags] if isinstance(tags, str) else list(tags)
        if "dir" in self._settings:
            Path(self._settings["dir"]).mkdir(parents=True, exist_ok=True)
        self._run: Any = self._wandb.init(config=dict(config), settings=settings, reinit="create_new", **self._settings)

    def curve(self, name: str, iteration: int, values: Mapping[str, float]) -> None:
        """A point of each curve, with the iteration as x axis."""
        if name not in self._curves:
            self._curves.add(name)
            self._run.define_metric(f"{name}/iteration", hidden=True)
            self._run.define_metric(f"{name}/*", step_metric=f"{name}/iteration")
        self._run.log({f"{name}/iteration": iteration, **{f"{name}/{key}": value for key, value in values.items()}})

    def numbers(self, values: Mapping[str, float]) -> None:
        """The run's summary."""
        self._run.summary.update(dict(values))

    def close(self, document: Mapping[str, Any]) -> None:
        """Adds the table and the results document, and ends the run as failed or not."""
        self._run.summary.update({"status": document["status"], "run_key": document["run_key"]})
        self._run.log({"results": self._wandb.Table(columns=list(COLUMNS), data=result_rows(document))})
        artifact = self._wandb.Artifact(f"results-{self._run.id}", type="results")
        with artifact.new_file("results.json", mode="w", encoding="utf-8") as file:
            file.write(to_json(document))
        self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if document["status"] == "done" else 1)


def sink(settings: Mapping[str, Any]) -> WandbSink:
    """W&B with these settings."""
    return WandbSink(settings)
