"""Experiment trackers (``--track``), implemented with the reporting hooks; each needs the extra of the same name.

Names, settings and libraries are checked before a model is loaded; a failing tracker never stops the run.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ttmbench._util.console import warn
from ttmbench._util.files import safe_name, to_json
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError
from ttmbench.hookspecs import hookimpl
from ttmbench.results.labels import key_of, numbers_in
from ttmbench.types import IterationRecord

Record = Mapping[str, Any]
"""Settings, or a part of a results document as hooks get it."""
UNRANKED = "unranked"  # controls and held-out groups have no track
COLUMNS = ("task", "filter", "column", "track", "metric", "value", "stderr", "ci_low", "ci_high", "chance")
_OF_AN_ITERATION = ("threshold", "selected", "coverage", "tied", "pseudo_label_accuracy", "learning_rate", "seconds")


class Sink(Protocol):
    """A tracker's library; `TrackerPlugin` reports its exceptions.

    Attributes:
        settings: keys of ``--track_args`` that it accepts in addition to ``project`` and ``name``.
    """

    settings: ClassVar[frozenset[str]]

    def __init__(self, settings: Record) -> None:
        """Imports the library without opening a run."""

    def open(self, config: Record) -> None:
        """Starts a run with this configuration."""

    def curve(self, name: str, iteration: int, values: Mapping[str, float]) -> None:
        """Adds a point to every curve below a name."""

    def numbers(self, values: Mapping[str, float]) -> None:
        """Logs or replaces final numbers."""

    def close(self, document: Record) -> None:
        """Ends the run with its results document."""


class _Tensorboard:
    """TensorBoard: event files below ``<dir>/<project>/<name>``, with the settings and the table of results as text."""

    settings: ClassVar = frozenset({"dir"})

    def __init__(self, settings: Record) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._settings, self._make = settings, SummaryWriter

    def open(self, config: Record) -> None:
        parent = Path(self._settings.get("dir", "runs")) / safe_name(self._settings["project"])
        name = safe_name(self._settings["name"])
        unused = (number for number in range(2, 10_000) if not (parent / f"{name}-{number}").exists())
        folder = parent / (f"{name}-{next(unused)}" if (parent / name).exists() else name)
        self._writer = self._make(str(folder))
        self._text("config", config)
        self._writer.flush()

    def curve(self, name: str, iteration: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(f"{name}/{key}", value, iteration)
        self._writer.flush()

    def numbers(self, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, 0)
        self._writer.flush()

    def close(self, document: Record) -> None:
        rows: list[Sequence[object]] = [COLUMNS, ["---"] * len(COLUMNS), *result_rows(document)]
        table = "\n".join("| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in rows)
        self._writer.add_text("results", table, 0)
        self._text("run", {key: document[key] for key in ("status", "errors", "run_key", "packages", "git_hash")})
        self._writer.close()

    def _text(self, name: str, values: Record) -> None:
        """JSON as TensorBoard's Markdown shows it as it is: indented by four."""
        lines = json.dumps(values, indent=2, ensure_ascii=False).splitlines()
        self._writer.add_text(name, "\n".join("    " + line for line in lines), 0)


class _Trackio:
    """Trackio: a local database (TRACKIO_DIR), or a Space of the Hub with ``space_id``."""

    settings: ClassVar = frozenset({"group", "space_id", "private"})

    def __init__(self, settings: Record) -> None:
        self._trackio: Any = import_module("trackio")
        self._settings = dict(settings)

    def open(self, config: Record) -> None:
        self._run: Any = self._trackio.init(config=dict(config), embed=False, **self._settings)

    def curve(self, name: str, iteration: int, values: Mapping[str, float]) -> None:
        self._run.log({f"{name}/{key}": value for key, value in values.items()}, step=iteration)

    def numbers(self, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=0)

    def close(self, document: Record) -> None:
        try:
            self._run.log({"results": self._trackio.Table(columns=list(COLUMNS), data=result_rows(document))}, step=0)
            artifact = self._trackio.Artifact("results", type="results", metadata={"status": document["status"]})
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "results.json"
                file.write_text(to_json(document), encoding="utf-8")
                artifact.add_file(str(file))
                self._run.log_artifact(artifact)
        finally:
            self._trackio.finish()


class _Wandb:
    """Weights & Biases: a separate run, online or (``mode=offline``) in files."""

    settings: ClassVar = frozenset({"dir", "group", "mode", "entity", "tags", "notes", "job_type"})

    def __init__(self, settings: Record) -> None:
        self._wandb: Any = import_module("wandb")
        self._settings = dict(settings)
        self._curves: set[str] = set()

    def open(self, config: Record) -> None:
        # W&B's own records of command line, output and code may contain secrets.
        settings = self._wandb.Settings(
            console="off", x_disable_meta=True, disable_git=True, disable_code=True, x_save_requirements=False
        )
        if isinstance(self._settings.get("tags"), str):
            self._settings["tags"] = [self._settings["tags"]]
        if "dir" in self._settings:
            Path(self._settings["dir"]).mkdir(parents=True, exist_ok=True)
        self._run: Any = self._wandb.init(config=dict(config), settings=settings, reinit="create_new", **self._settings)

    def curve(self, name: str, iteration: int, values: Mapping[str, float]) -> None:
        if name not in self._curves:
            self._curves.add(name)
            self._run.define_metric(f"{name}/iteration", hidden=True)
            self._run.define_metric(f"{name}/*", step_metric=f"{name}/iteration")
        self._run.log({f"{name}/iteration": iteration, **{f"{name}/{key}": value for key, value in values.items()}})

    def numbers(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def close(self, document: Record) -> None:
        self._run.summary.update({"status": document["status"], "run_key": document["run_key"]})
        self._run.log({"results": self._wandb.Table(columns=list(COLUMNS), data=result_rows(document))})
        artifact = self._wandb.Artifact(f"results-{self._run.id}", type="results")
        with artifact.new_file("results.json", mode="w", encoding="utf-8") as file:
            file.write(to_json(document))
        self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if document["status"] == "done" else 1)


TRACKERS: dict[str, type[Sink]] = {"wandb": _Wandb, "trackio": _Trackio, "tensorboard": _Tensorboard}


def make_trackers(config: RunConfig) -> list[tuple[str, TrackerPlugin]]:
    """Creates the trackers of a run, not yet opened, as (plugin name, plugin) in the order of ``track``.

    ``key=value`` in ``track_args`` is passed to all trackers that accept the key, ``tracker.key=value`` to one.
    UsageError if a library is not installed, or if no tracker of the run accepts a setting.
    """
    taken = {tracker: sorted({"project", "name", *TRACKERS[tracker].settings}) for tracker in config.track}
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
    return [(f"tracker {kind}", TrackerPlugin(kind, _sink(kind, settings[kind]))) for kind in taken]


def _sink(tracker: str, settings: Record) -> Sink:
    """The sink of a tracker; UsageError if its library cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's message about its own imports
            import_module(tracker)
            return TRACKERS[tracker](settings)
    except Exception as error:
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        raise UsageError(f"--track {tracker}: {tracker} {why}; pip install 'ttmbench[{tracker}]'") from None


class TrackerPlugin:
    """Forwards the hooks to a sink; after its first failure the sink is not called again.

    Curves are written in the order of iterations. If an earlier run started a seed, the hooks report only its later
    iterations; their points are buffered until the results document provides the earlier ones.
    """

    def __init__(self, tracker: str, sink: Sink) -> None:
        self._tracker, self._sink = tracker, sink
        self._failed = self._warned = False
        self._written: dict[tuple[str, int], int] = {}
        self._waiting: dict[tuple[str, int, int], dict[str, float]] = {}
        self._reported: dict[str, float] = {}

    @hookimpl
    def ttmbench_run_started(self, config: Record) -> None:
        """Opens the tracker."""
        self._try("could not begin a run", partial(self._sink.open, config))

    @hookimpl
    def ttmbench_iteration_finished(self, task: str, record: IterationRecord) -> None:
        """Writes the next point of the curves."""
        self._waiting[task, record.seed, record.iteration] = _curve_values(vars(record))
        if self._written.get((task, record.seed), 0) + 1 == record.iteration:
            self._write_curves(task, record.seed)

    @hookimpl
    def ttmbench_task_scored(self, task: str, results: Mapping[str, float | None], tracks: Mapping[str, str]) -> None:
        """Writes the numbers of a filter."""
        self._write_numbers(final_values(task, results, tracks))

    @hookimpl
    def ttmbench_run_finished(self, result: Record) -> None:
        """Writes the curves of an earlier run of the same command, the table and the document; closes the tracker."""
        for task, record in result["ttm"].items():
            for line in record["iterations"]:
                self._waiting[task, line["seed"], line["iteration"]] = _curve_values(line)
        self._write_curves()
        for task, numbers in result["results"].items():
            self._write_numbers(final_values(task, numbers, result["tracks"][task]))
        self._try("could not end its run", partial(self._sink.close, result))

    def _write_numbers(self, values: Mapping[str, float]) -> None:
        new = {name: value for name, value in values.items() if self._reported.get(name) != value}
        if new:
            self._reported.update(new)
            self._try("could not log numbers", partial(self._sink.numbers, new))

    def _write_curves(self, *only: str | int) -> None:
        """Writes buffered points, of one task and seed or of all."""
        for task, seed, iteration in sorted(key for key in self._waiting if key[: len(only)] == only):
            values = self._waiting.pop((task, seed, iteration))
            if iteration > self._written.get((task, seed), 0):
                self._written[task, seed] = iteration
                name = f"ttm/{task}/seed_{seed}"
                self._try("could not log a curve", partial(self._sink.curve, name, iteration, values))

    def _try(self, what: str, act: Callable[[], None]) -> None:
        """Calls the library; reports a failure and the first warning in one line each; its prints go to stderr."""
        if self._failed:
            return
        try:
            with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(sys.stderr):
                warnings.simplefilter("always")
                act()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any exception of third-party code
            self._failed = True
            problem = f"{what} ({type(error).__name__}: {error}); the run continues without it"
            warn(f"tracker {self._tracker}: {problem}")
            return
        messages = [str(warning.message) for warning in caught if warning.category is UserWarning]
        if messages and not self._warned:
            self._warned = True
            warn(f"tracker {self._tracker}: {messages[0]}")


def _curve_values(record: Record) -> dict[str, float]:
    """The defined numbers of an iteration; ``loss`` is the loss of the last epoch."""
    values = {name: record[name] for name in _OF_AN_ITERATION} | dict(record["metrics"])
    if record["loss"]:
        values["loss"] = record["loss"][-1]
    return {name: float(value) for name, value in values.items() if value is not None}


def final_values(task: str, results: Mapping[str, float | None], tracks: Mapping[str, str]) -> dict[str, float]:
    """The defined numbers of a task by ``track/task/filter/metric``, so that raw and TTM numbers are never mixed.

    ``results`` are by ``metric,filter``, ``metric_stderr,filter`` and ``metric_seed_std,filter``, ``tracks`` by
    ``metric,filter``.

    >>> final_values("t", {"text_score,none": 0.5, "group_match,ttm": None}, {"text_score,none": "zero_shot"})
    {'zero_shot/t/none/text_score': 0.5}
    """
    names = {
        f"{tracks.get(key_of(metric, name), UNRANKED)}/{task}/{name}/{kind}": key_of(kind, name)
        for metric, name in numbers_in(results)
        for kind in (metric, f"{metric}_stderr", f"{metric}_seed_std")
    }
    return {name: float(value) for name, key in names.items() if (value := results.get(key)) is not None}


def result_rows(document: Record) -> list[list[str | float | None]]:
    """The results document as a table with the columns `COLUMNS`."""
    from ttmbench.results.document import ResultsDocument
    from ttmbench.results.numbers import numbers_of

    return [
        [
            *(number.task, number.filter, number.method, number.track or UNRANKED, number.metric),
            *(number.value, number.stderr, number.ci_low, number.ci_high, number.chance),
        ]
        for number in numbers_of(ResultsDocument.of(document))
    ]
