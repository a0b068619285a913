"""Measures TTM at several learning rates on the built-in tasks, with all that can be known of a run without labels.

    python scripts/docs/learning_rates.py cells.jsonl               # 120 runs, some 14 s each on a core
    python scripts/docs/learning_rates.py cells.jsonl --summary     # into results/reference

A line of the file is one run; runs that are in it are not made again. ``scripts/docs/learning_rate_rules.py`` makes the
tables of docs/learning-rate.md from the summary.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench.config import RunConfig
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.evaluator.plan import RunContext, plan_task
from ttmbench.evaluator.score_task import score_task
from ttmbench.evaluator.settings import model_settings, task_settings, tasks_of
from ttmbench.evaluator.task import adaptation
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.results.summary import metric_mean
from ttmbench.scoring.capabilities import capabilities_of
from ttmbench.ttm.learning_rates import confident_kept, matchings, same
from ttmbench.ttm.restoring import restored
from ttmbench.ttm.selection import PseudoLabels
from ttmbench.ttm.variants import Adaptation
from ttmbench.types import Scores

SUMMARY = Path(__file__).resolve().parents[2] / "results" / "reference" / "study_learning_rates.json"
MODELS = ("tiny-clip", "tiny-clip-seed1")
TASKS = ("shapes_color", "shapes_place", "shapes_replace", "shapes_spatial", "shapes_color_global")
RATES = (3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3)
KEY = ("model", "task", "lr", "seed")


def captions(scores: Scores, is_global: bool) -> list[Any]:
    """The caption given to each image of every unit, -1 where the matching ties."""
    found = matchings(scores, is_global)
    return np.where(found.tie[:, None], -1, found.captions).tolist()


def cell(stage: Adaptation, rate: float, seed: int) -> dict[str, Any]:
    """One run of TTM: per iteration what needs no label, and the labelled result apart from it."""
    stage = replace(stage, settings=stage.settings.with_changes({"lr": rate}, "study"))
    is_global = stage.spec.is_global
    metric = stage.registry.metric("global_assignment_accuracy" if is_global else "group_match")
    course: list[dict[str, Any]] = []
    results: list[float | None] = []
    clock = time.perf_counter()
    with restored(stage.stage):
        for step in stage.steps(seed):
            course.append(
                {
                    "threshold": step.threshold,
                    "selected": int(step.selected.sum()),
                    "loss": [round(loss, 5) for loss in step.loss],
                    "captions": captions(step.scores, is_global),
                }
            )
            results.append(metric_mean(metric, step.scores))
    return {
        "raw_captions": captions(stage.raw, is_global),
        "raw_confidence": [round(value, 4) for value in matchings(stage.raw, is_global).confidence.tolist()],
        "course": course,
        "reads_labels": {"raw": metric_mean(metric, stage.raw), "ttm": results},
        "seconds": round(time.perf_counter() - clock, 2),
    }


def opened(registry: Registry, model: str, task: str, ttm_args: dict[str, Any]) -> Adaptation:
    """A task with its features, scored once."""
    config = RunConfig(model=model, tasks=[task], ttm=True, ttm_args=ttm_args, device="cpu")
    adapter = make_adapter(registry, model, {}, model_settings(config))
    file = tasks_of(registry, config)[task]
    settings = task_settings(registry, config, file.spec)
    context = RunContext(registry, config, capabilities_of(adapter))
    return adaptation(score_task(plan_task(context, file, settings), context), context, settings)


def measure(file: Path, options: argparse.Namespace, ttm_args: dict[str, Any] | None = None) -> None:
    """Makes the runs that the file lacks; ``ttm_args`` are other settings than the model's own, for a quick one."""
    done = {tuple(row[name] for name in KEY) for row in read(file)}
    registry = build_registry()
    for task, model in itertools.product(options.tasks.split(","), options.models.split(",")):
        stage: Adaptation | None = None
        for rate, seed in itertools.product(options.rates.split(","), options.seeds.split(",")):
            key = (model, task, float(rate), int(seed))
            if key in done:
                continue
            stage = stage or opened(registry, model, task, ttm_args or {})
            row = dict(zip(KEY, key, strict=True)) | cell(stage, float(rate), int(seed))
            print(*key, row["reads_labels"]["ttm"][-1], row["seconds"], flush=True)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """The runs of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def labels(row: dict[str, Any], found: list[Any]) -> PseudoLabels:
    """Captions of a line of the file as they were."""
    confidence = np.array(row["raw_confidence"])
    pairs = np.array(found).reshape(len(confidence), -1)
    return PseudoLabels(pairs, confidence, (pairs < 0).any(axis=1))


def summary(file: Path) -> list[dict[str, Any]]:
    """One entry for each model, task and rate: lists by seed; agreement by pair of seeds."""
    entries = []
    rows = sorted(read(file), key=lambda row: tuple(row[name] for name in KEY))
    for key, group in itertools.groupby(rows, key=lambda row: tuple(row[name] for name in KEY[:3])):
        runs = list(group)
        after = [labels(run, run["course"][-1]["captions"]) for run in runs]
        before = [labels(run, run["course"][-2]["captions"]) for run in runs]
        entries.append(
            {
                **dict(zip(KEY[:3], key, strict=True)),
                "seeds": [run["seed"] for run in runs],
                "reads_labels": {
                    "raw": runs[0]["reads_labels"]["raw"],
                    "ttm": [run["reads_labels"]["ttm"][-1] for run in runs],
                },
                "final_loss": [run["course"][-1]["loss"][-1] for run in runs],
                "confident_kept": [
                    round(confident_kept(labels(run, run["raw_captions"]), one) or 0.0, 4)
                    for run, one in zip(runs, after, strict=True)
                ],
                "settled": [round(float(same(*two).mean()), 4) for two in zip(before, after, strict=True)],
                "agreement": {
                    f"{runs[i]['seed']},{runs[j]['seed']}": round(float(same(after[i], after[j]).mean()), 4)
                    for i, j in itertools.combinations(range(len(runs)), 2)
                },
            }
        )
    return entries


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rates", default=",".join(map(str, RATES)))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--summary", action="store_true", help="write results/reference/study_learning_rates.json")
    options = parser.parse_args()
    if options.summary:
        lines = ",\n".join(json.dumps(entry) for entry in summary(options.file))
        SUMMARY.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    else:
        measure(options.file, options)


if __name__ == "__main__":
    main()
