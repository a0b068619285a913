"""From a run's configuration to analyses and their files: what ``ttmbench analyze`` does, as a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ttmbench import environment, plots
from ttmbench.alpha import sweep
from ttmbench.analysis import ALPHA, ANALYSES, TRAINS, Question
from ttmbench.determinism import deterministic, naming_what_cannot
from ttmbench.errors import UsageError
from ttmbench.evaluator import model_settings, store_of, task_settings, tasks_of
from ttmbench.models import can_adapt, make_adapter, model_info
from ttmbench.opening import open_task
from ttmbench.protocols import Debiasable, DualEncoder, PreparedPairScorer
from ttmbench.registry import build_registry
from ttmbench.results import safe_name, to_json, write_atomically
from ttmbench.runconfig import RunConfig
from ttmbench.secrets import redact, scrub_values, secrets_of
from ttmbench.taskrun import adaptation

SCHEMA_VERSION = "1.0"
_READS = {"lr": "to report 'baseline', 'metric' and 'final'; the rest of the data reads none"}
_SUPERVISION = ("group_score", "individual_match", "global_assignment_accuracy", "group_match")


def analyze_tasks(
    analysis: str,
    config: RunConfig,
    started: datetime,
    command: Sequence[str] = (),
    *,
    taus: Sequence[float] | None = None,
    lrs: Sequence[float] | None = None,
) -> Iterator[tuple[dict[str, Any], list[Path]]]:
    """Runs one analysis for each task of a configuration.

    Args:
        analysis: one of `ttmbench.analysis.ANALYSES`, or ``alpha``.
        config: model, tasks and settings; ``output_path`` is a folder.
        started: time in the file names.
        command: the command line, for the record.
        taus: for ``tau``: the first thresholds to compare.
        lrs: for ``lr``: the learning rates to compare.

    Yields:
        The document, and the files that hold it and its pictures.

    Raises:
        UsageError: the model cannot be analysed so, or the files cannot be written.
        DataError: data or weights out of reach.
    """
    with deterministic(config.deterministic, config.seed), naming_what_cannot():
        yield from _analyses(analysis, config, started, command, {"taus": taus, "lrs": lrs})


def _analyses(
    analysis: str,
    config: RunConfig,
    started: datetime,
    command: Sequence[str],
    grids: Mapping[str, Sequence[float] | None],
) -> Iterator[tuple[dict[str, Any], list[Path]]]:
    registry = build_registry(config.include_path)
    tasks = tasks_of(registry, config)
    adapter = make_adapter(registry, config.model, config.model_args, model_settings(config))
    _check(analysis, config, adapter)
    store = store_of(config)
    folder = Path(config.output_path or ".") / safe_name(config.model_name)
    stamp = started.strftime("%Y-%m-%dT%H-%M-%S.%f")
    for task in tasks.values():
        settings = task_settings(registry, config, task.spec)
        enlarge = settings.augment_scale if settings.augment and analysis in TRAINS else None
        extra = _SUPERVISION if analysis == "supervision" else ()
        with_parts = analysis == ALPHA
        opened = open_task(
            registry,
            config,
            adapter,
            task,
            enlarge=enlarge,
            extra_metrics=extra,
            with_parts=with_parts,
            with_stage=not with_parts,
            run_store=store,
        )
        metric = registry.metric("global_assignment_accuracy" if task.spec.is_global else "group_match")
        said: dict[str, Any]
        if analysis == ALPHA:
            assert opened.parts is not None, "parts were asked for"
            tuned = registry.metric("group_score")
            metrics = {one.name: one for one in (*opened.metrics, tuned)}
            said = {
                "metric": tuned.name,
                "reads_labels": "to report; and one half's labels choose the alpha of the other half",
                "hyperparameters": {},
                "seeds": [config.seed],
                "data": sweep(opened.parts, list(metrics.values()), tuned.name, config.seed),
            }
        else:
            stage = adaptation(registry, config, opened, settings)
            if analysis == "supervision":
                opened_by_name = {one.name: one for one in opened.metrics}
                stage = adaptation(registry, config, opened, settings, [opened_by_name[name] for name in _SUPERVISION])
            said = {
                "metric": metric.name,
                "reads_labels": _READS.get(analysis, "to report; the curve 'oracle' also to select"),
                "hyperparameters": {**settings.model_dump(mode="json"), "lr": stage.learning_rate},
                "seeds": list(stage.seeds) if analysis in TRAINS else [],
                "data": ANALYSES[analysis](
                    Question(stage, metric, **grids, bootstrap_iters=config.bootstrap_iters, interval=config.interval)
                ),
            }
        document = {
            "schema_version": SCHEMA_VERSION,
            "analysis": analysis,
            "task": task.spec.task,
            "task_version": task.spec.version,
            "matching": task.spec.matching,
            "n_groups": len(opened.raw.groups),
            "source": opened.source,
            "data_sha256": opened.fingerprint,
            "model_name": config.model_name,
            "model_info": model_info(adapter),
            **said,
            "date": started.timestamp(),
            "deterministic": config.deterministic,
            "packages": environment.packages(),
            "command": redact(command),
        }
        document = scrub_values(document, secrets_of(config.model_args))
        yield document, _write(folder, f"{analysis}_{task.spec.task}_{stamp}", document)


def _check(analysis: str, config: RunConfig, adapter: Any) -> None:
    """Raises UsageError if an analysis says nothing of a model."""
    if analysis == ALPHA:
        if not (isinstance(adapter, Debiasable) and isinstance(adapter, PreparedPairScorer)):
            raise UsageError(f"model {config.model} has no log P(t) to take off its scores, so '{ALPHA}' says nothing")
    elif not (isinstance(adapter, DualEncoder) or can_adapt(adapter)) or (
        analysis in TRAINS and not can_adapt(adapter)
    ):
        raise UsageError(f"model {config.model} cannot be adapted, so '{analysis}' says nothing of it")


def _write(folder: Path, stem: str, document: dict[str, Any]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output_path {folder} cannot be written to: {error.strerror or error}") from None
    files = [folder / f"{stem}.json", folder / f"{stem}.png", folder / f"{stem}.svg"]
    write_atomically(files[0], lambda path: path.write_text(to_json(document), encoding="utf-8"))
    for file in files[1:]:
        write_atomically(file, lambda path, kind=file.suffix[1:]: plots.save(document, path, kind))  # type: ignore[misc]
    return files
