"""Experiment trackers (``--track``), implemented with the reporting hooks; each needs the extra of the same name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import redirect_stdout, suppress
from datetime import datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from ttmbench._util.console import warn
from ttmbench._util.file_io import safe_name, to_json
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError
from ttmbench.hookspecs import hookimpl
from ttmbench.results.document import IterationRecord
from ttmbench.results.numbers import from_entries
from ttmbench.types import Record

Tracker = Generator[None, Any, None]
"""Is sent (numbers by name, None), or (points of curves by name, their iteration), and at the end the document."""
_OF_AN_ITERATION = ("threshold", "selected", "coverage", "tied", "pseudo_label_accuracy", "learning_rate", "seconds")


def _tensorboard(settings: Record, config: Record) -> Tracker:
    """Event files below ``<dir>/<project>/<name>``, with the configuration and how the run ended as text."""
    base = Path(settings.get("dir", "runs")) / safe_name(settings["project"]) / safe_name(settings["name"])
    folder = next(path for n in count(1) if not (path := Path(f"{base}-{n}" if n > 1 else base)).exists())
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
    writer.add_text("config", f"```\n{to_json(config)}\n```")
    while isinstance(message := (yield), tuple):
        for name, value in message[0].items():
            writer.add_scalar(name, value, message[1] or 0)
        writer.flush()
    writer.add_text("run", f"```\n{to_json({key: message[key] for key in ('status', 'errors', 'run_key')})}\n```")
    writer.close()


def _trackio(settings: Record, config: Record) -> Tracker:
    """A local database (TRACKIO_DIR), or a Space of the Hub with ``space_id``."""
    trackio: Any = import_module("trackio")
    run: Any = trackio.init(config=dict(config), embed=False, **settings)
    while isinstance(message := (yield), tuple):
        run.log(message[0], step=message[1] or 0)
    trackio.finish()


def _wandb(settings: Record, config: Record) -> Tracker:
    """A separate run of Weights & Biases, online or (``mode=offline``) in files."""
    wandb: Any = import_module("wandb")
    Path(settings.get("dir", ".")).mkdir(parents=True, exist_ok=True)
    # W&B's own records of command line, output and code are not the results of a run.
    private = {"console": "off", "x_disable_meta": True, "disable_git": True, "disable_code": True}
    private_settings = wandb.Settings(**private, x_save_requirements=False)
    run: Any = wandb.init(config=dict(config), reinit="create_new", settings=private_settings, **settings)
    while isinstance(message := (yield), tuple):
        values, iteration = message
        if iteration is None:
            run.summary.update(values)
        else:
            curve = next(iter(values)).rpartition("/")[0]
            run.define_metric(f"{curve}/iteration", hidden=True)
            run.define_metric(f"{curve}/*", step_metric=f"{curve}/iteration")
            run.log({f"{curve}/iteration": iteration, **values})
    run.summary.update({key: message[key] for key in ("status", "run_key")})
    run.finish(exit_code=0 if message["status"] == "done" else 1)


TRACKERS: dict[str, tuple[Callable[[Record, Record], Tracker], tuple[str, ...]]] = {
    "wandb": (_wandb, ("dir", "group", "mode", "entity", "tags", "notes", "job_type")),
    "trackio": (_trackio, ("group", "space_id", "private")),
    "tensorboard": (_tensorboard, ("dir",)),
}
"""Name -> what opens a tracker with settings and configuration, and its settings beside ``project`` and ``name``."""


def make_trackers(config: RunConfig) -> list[tuple[str, TrackerPlugin]]:
    """Creates the trackers of a run, not yet opened, as (plugin name, plugin) in the order of ``track``.

    ``key=value`` in ``track_args`` is passed to all trackers that accept the key, ``tracker.key=value`` to one.
    UsageError if a library cannot be imported, or if no tracker of the run accepts a setting.
    """
    name = f"{safe_name(config.model_name)}-{datetime.now():%Y-%m-%dT%H-%M-%S}"
    settings: dict[str, dict[str, Any]] = {kind: {"project": "ttmbench", "name": name} for kind in config.track}
    accepted = {kind: ("project", "name", *TRACKERS[kind][1]) for kind in settings}
    for key, value in sorted(config.track_args.items(), key=lambda item: "." in item[0]):
        of, _, option = key.rpartition(".")
        takers = [kind for kind in settings if of in ("", kind) and option in accepted[kind]]
        if not takers:
            known = "; ".join(f"{kind}: {', '.join(options)}" for kind, options in accepted.items())
            raise UsageError(f"--track_args {key}: no tracker of this run takes it ({known or 'there is none'})")
        text = value if isinstance(value, bool | list) else [str(value)] if option == "tags" else str(value)
        settings |= {kind: {**settings[kind], option: text} for kind in takers}
    for kind in settings:
        try:
            import_module(kind)
        except Exception as error:
            raise UsageError(f"--track {kind}: {error}; pip install 'ttmbench[{kind}]'") from None
    return [(f"tracker {kind}", TrackerPlugin(kind, settings[kind])) for kind in settings]


class TrackerPlugin:
    """Forwards the hooks to a tracker; after its first failure the tracker is not called again."""

    def __init__(self, kind: str, settings: Record) -> None:
        self._kind, self._settings, self._logged = kind, settings, dict[str, float]()

    @hookimpl
    def ttmbench_run_started(self, config: Record) -> None:
        """Opens the tracker."""
        self._tracker = TRACKERS[self._kind][0](self._settings, config)
        self._send(None)

    @hookimpl
    def ttmbench_iteration_finished(self, task: str, method: str, record: IterationRecord) -> None:
        """Logs a point of each curve of a seed; the loss is that of the last epoch."""
        values = {name: getattr(record, name) for name in _OF_AN_ITERATION} | dict(record.metrics)
        values["loss"] = record.loss[-1] if record.loss else None
        curve = f"{method}/{task}/seed_{record.seed}"
        self._send(({f"{curve}/{key}": float(x) for key, x in values.items() if x is not None}, record.iteration))

    @hookimpl
    def ttmbench_task_scored(self, task: str, results: Mapping[str, float | None], tracks: Mapping[str, str]) -> None:
        """Logs the new numbers of a task as ``track/task/method/metric``; controls have no track."""
        values: dict[str, float | None] = {}
        for number in from_entries(task, {"results": results, "tracks": tracks}):
            name = f"{number.track or 'unranked'}/{task}/{number.method}/{number.metric}"
            values |= {name: number.value, f"{name}_stderr": number.stderr, f"{name}_seed_std": number.seed_std}
        if new := {name: float(x) for name, x in values.items() if x is not None and self._logged.get(name) != x}:
            self._logged |= new
            self._send((new, None))

    @hookimpl
    def ttmbench_run_finished(self, result: Record) -> None:
        """Logs the numbers that an earlier run of the same command had; closes the tracker."""
        for task, numbers in result["results"].items():
            self.ttmbench_task_scored(task, numbers, result["tracks"][task])
        self._send(result)

    def _send(self, message: object) -> None:
        """What the library prints goes to stderr; a failure is one line, and ends the tracker."""
        try:
            with redirect_stdout(sys.stderr), suppress(StopIteration):  # it has ended
                self._tracker.send(message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any exception of third-party code
            warn(f"tracker {self._kind} failed ({type(error).__name__}: {error}); the run continues without it")
