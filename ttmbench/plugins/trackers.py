"""Experiment trackers (``--track``), implemented with the reporting hooks; each needs the extra of the same name.

Names, settings and libraries are checked before a model is loaded; a failing tracker never stops the run.
"""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from ttmbench._util.console import warn
from ttmbench._util.file_io import safe_name
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError
from ttmbench.hookspecs import hookimpl
from ttmbench.results.numbers import from_entries
from ttmbench.types import IterationRecord

Record = Mapping[str, Any]
"""Settings, or a part of a results document as hooks get it."""
COLUMNS = ("task", "method", "method_name", "track", "metric", "value", "stderr", "ci_low", "ci_high", "chance")
_OF_AN_ITERATION = ("threshold", "selected", "coverage", "tied", "pseudo_label_accuracy", "learning_rate", "seconds")
Log = Callable[[Mapping[str, float], int | None], None]
"""Logs numbers by name; with a step, as points of curves."""
Close = Callable[[Record], None]
"""Ends the tracker's run with the results document."""


def _tensorboard(settings: Record, config: Record) -> tuple[Log, Close]:
    """Event files below ``<dir>/<project>/<name>``, with the settings and the table of results as text."""
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(settings.get("dir", "runs")) / safe_name(settings["project"]) / safe_name(settings["name"])
    names = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    writer = SummaryWriter(str(next(name for name in names if not name.exists()) if folder.exists() else folder))

    def text(title: str, values: Record) -> None:  # JSON as TensorBoard's Markdown shows it: indented by four
        writer.add_text(title, textwrap.indent(json.dumps(values, indent=2, ensure_ascii=False), "    "), 0)
        writer.flush()

    def log(values: Mapping[str, float], step: int | None) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step or 0)
        writer.flush()

    def close(document: Record) -> None:
        rows = [COLUMNS, ["---"] * len(COLUMNS), *result_rows(document)]
        lines = (" | ".join("" if cell is None else str(cell) for cell in row) for row in rows)
        writer.add_text("results", "\n".join(f"| {line} |" for line in lines), 0)
        text("run", {key: document[key] for key in ("status", "errors", "run_key", "packages", "git_hash")})
        writer.close()

    text("config", config)
    return log, close


def _trackio(settings: Record, config: Record) -> tuple[Log, Close]:
    """A local database (TRACKIO_DIR), or a Space of the Hub with ``space_id``."""
    trackio: Any = import_module("trackio")
    run: Any = trackio.init(config=dict(config), embed=False, **settings)

    def close(document: Record) -> None:
        run.log({"results": trackio.Table(columns=list(COLUMNS), data=result_rows(document))}, step=0)
        trackio.finish()

    return lambda values, step: run.log(dict(values), step=step or 0), close


def _wandb(settings: Record, config: Record) -> tuple[Log, Close]:
    """A separate run of Weights & Biases, online or (``mode=offline``) in files."""
    wandb: Any = import_module("wandb")
    Path(settings.get("dir", ".")).mkdir(parents=True, exist_ok=True)
    # W&B's own records of command line, output and code are not the results of a run.
    private = {"console": "off", "x_disable_meta": True, "disable_git": True, "disable_code": True}
    about: dict[str, Any] = {**settings, "settings": wandb.Settings(**private, x_save_requirements=False)}
    if isinstance(about.get("tags"), str):
        about["tags"] = [about["tags"]]
    run: Any = wandb.init(config=dict(config), reinit="create_new", **about)

    def log(values: Mapping[str, float], step: int | None) -> None:
        if step is None:
            run.summary.update(dict(values))
            return
        for curve in dict.fromkeys(key.rpartition("/")[0] for key in values):
            run.define_metric(f"{curve}/iteration", hidden=True)
            run.define_metric(f"{curve}/*", step_metric=f"{curve}/iteration")
        run.log({**{f"{key.rpartition('/')[0]}/iteration": step for key in values}, **values})

    def close(document: Record) -> None:
        run.summary.update({"status": document["status"], "run_key": document["run_key"]})
        run.log({"results": wandb.Table(columns=list(COLUMNS), data=result_rows(document))})
        run.finish(exit_code=0 if document["status"] == "done" else 1)

    return log, close


TRACKERS: dict[str, tuple[Callable[[Record, Record], tuple[Log, Close]], frozenset[str]]] = {
    "wandb": (_wandb, frozenset({"dir", "group", "mode", "entity", "tags", "notes", "job_type"})),
    "trackio": (_trackio, frozenset({"group", "space_id", "private"})),
    "tensorboard": (_tensorboard, frozenset({"dir"})),
}
"""Name -> what opens a run with settings and configuration; settings that it accepts beside ``project``, ``name``."""


def make_trackers(config: RunConfig) -> list[tuple[str, TrackerPlugin]]:
    """Creates the trackers of a run, not yet opened, as (plugin name, plugin) in the order of ``track``.

    ``key=value`` in ``track_args`` is passed to all trackers that accept the key, ``tracker.key=value`` to one.
    UsageError if a library is not installed, or if no tracker of the run accepts a setting.
    """
    taken = {tracker: sorted({"project", "name", *TRACKERS[tracker][1]}) for tracker in config.track}
    name = f"{safe_name(config.model_name)}-{datetime.now():%Y-%m-%dT%H-%M-%S}"
    settings: dict[str, dict[str, Any]] = {tracker: {"project": "ttmbench", "name": name} for tracker in taken}
    for key, value in sorted(config.track_args.items(), key=lambda item: "." in item[0]):
        tracker, _, option = key.rpartition(".")
        takers = [taker for taker in taken if tracker in ("", taker) and option in taken[taker]]
        if not takers:
            known = "; ".join(f"{kind}: {', '.join(options)}" for kind, options in taken.items())
            raise UsageError(f"--track_args {key}: no tracker of this run takes it ({known or 'there is none'})")
        for taker in takers:
            settings[taker][option] = str(value) if option in ("project", "name", "dir", "group") else value
    for kind in taken:
        try:
            import_module(kind)
        except Exception as error:
            why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
            raise UsageError(f"--track {kind}: {kind} {why}; pip install 'ttmbench[{kind}]'") from None
    return [(f"tracker {kind}", TrackerPlugin(kind, partial(TRACKERS[kind][0], settings[kind]))) for kind in taken]


class TrackerPlugin:
    """Forwards the hooks to a tracker; after its first failure the tracker is not called again.

    Points are logged as iterations finish. If an earlier run began a seed, its curve is logged at the end, from the
    results document, so that every curve is whole and in order.
    """

    def __init__(self, tracker: str, open_run: Callable[[Record], tuple[Log, Close]]) -> None:
        self._tracker, self._open = tracker, open_run
        self._log: Log = lambda values, step: None
        self._close: Close = lambda document: None
        self._logged: dict[tuple[str, str, int], int] = {}  # iterations by task, method and seed
        self._reported: dict[str, float] = {}

    @hookimpl
    def ttmbench_run_started(self, config: Record) -> None:
        """Opens the tracker."""
        with self._tried("could not begin a run"):
            self._log, self._close = self._open(config)

    @hookimpl
    def ttmbench_iteration_finished(self, task: str, method: str, record: IterationRecord) -> None:
        """Logs the next point of the curves."""
        self._log_point(task, method, vars(record))

    @hookimpl
    def ttmbench_task_scored(self, task: str, results: Mapping[str, float | None], tracks: Mapping[str, str]) -> None:
        """Logs the new numbers of a task as ``track/task/method/metric``; controls have no track."""
        values: dict[str, float | None] = {}
        for number in from_entries(task, results, tracks=tracks):
            name = f"{number.track or 'unranked'}/{task}/{number.method}/{number.metric}"
            values |= {name: number.value, f"{name}_stderr": number.stderr, f"{name}_seed_std": number.seed_std}
        known = {name: float(value) for name, value in values.items() if value is not None}
        new = {name: value for name, value in known.items() if self._reported.get(name) != value}
        self._reported |= new
        if new:
            with self._tried("could not log numbers"):
                self._log(new, None)

    @hookimpl
    def ttmbench_run_finished(self, result: Record) -> None:
        """Logs what an earlier run of the same command measured, the table and the document; closes the tracker."""
        for task, methods in result.get("methods", {}).items():
            for method, record in methods.items():
                for line in record.get("iterations", ()):
                    self._log_point(task, method, line)
        for task, numbers in result["results"].items():
            self.ttmbench_task_scored(task, numbers, result["tracks"][task])
        with self._tried("could not end its run"):
            self._close(result)

    def _log_point(self, task: str, method: str, record: Record) -> None:
        key, iteration = (task, method, record["seed"]), record["iteration"]
        if iteration != self._logged.get(key, 0) + 1:
            return  # logged, or an earlier one is still missing
        self._logged[key] = iteration
        values = {name: record[name] for name in _OF_AN_ITERATION} | dict(record["metrics"])
        values["loss"] = record["loss"][-1] if record["loss"] else None  # of the last epoch
        curve = f"{method}/{task}/seed_{record['seed']}"
        with self._tried("could not log a curve"):
            self._log({f"{curve}/{name}": float(x) for name, x in values.items() if x is not None}, iteration)

    @contextlib.contextmanager
    def _tried(self, what: str) -> Iterator[None]:
        """Inside the library is called: a failure is one line, and what it prints goes to stderr."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any exception of third-party code
            self._log, self._close = lambda values, step: None, lambda document: None
            problem = f"{what} ({type(error).__name__}: {error}); the run continues without it"
            warn(f"tracker {self._tracker}: {problem}")


def result_rows(document: Record) -> list[list[object]]:
    """The results document as a table with the columns `COLUMNS`."""
    from ttmbench.results.document import ResultsDocument

    rows = [number.row() for number in ResultsDocument.of(document).numbers]
    return [[row[name] or "unranked" if name == "track" else row[name] for name in COLUMNS] for row in rows]
