"""Measures the built-in models on the built-in tasks over data seeds and training seeds.

    python scripts/docs/builtin_study.py    # results/reference/study_<model>.json; some ten minutes on a core

The site's page of the built-in tasks has the tables of these files. Data seeds 0 to 4 and training seeds 0
and 1 were fixed before any of these numbers was seen; settings were chosen on data seeds 1000 to 1004.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import page_parts

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results" / "reference"
DATA_SEEDS = (0, 1, 2, 3, 4)
MODELS = ("tiny-clip", "tiny-clip-seed1")
TASKS = ("shapes_color", "shapes_place", "shapes_replace", "shapes_spatial", "shapes_color_global")


def study_file(model: str) -> Path:
    """Where the rows of a model are."""
    return FOLDER / f"study_{model}.json"


def run(model: str, tasks: tuple[str, ...]) -> None:
    """Runs what a model's file lacks and adds it; a stopped study goes on where it was."""
    from ttmbench import simple_evaluate

    file = study_file(model)
    rows: list[dict] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    done = {(row["task"], row["data_seed"]) for row in rows}
    for task in tasks:
        for data_seed in DATA_SEEDS:
            if (task, data_seed) in done:
                continue
            result = simple_evaluate(
                model, [task], ttm=True, seeds=[0], task_args={"seed": data_seed}, bootstrap_iters=0, device="cpu"
            )
            match = "global_assignment_accuracy" if task.endswith("_global") else "group_match"
            numbers = result.results[task]
            row = {
                "model": model,
                "task": task,
                "data_seed": data_seed,
                "raw": numbers["group_score,none"],
                "simple_match": numbers[f"{match},none"],
                "ttm": numbers[f"{match},ttm"],
                "group_score_ttm": numbers["group_score,ttm"],
            }
            rows.append(row)
            print(row, flush=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def table() -> str:
    """The Markdown table: mean and standard deviation over data seeds, percent."""
    rows = [row for model in MODELS for row in json.loads(study_file(model).read_text(encoding="utf-8"))]
    lines = []
    for task in TASKS:
        for model in MODELS:
            mine = [row for row in rows if row["task"] == task and row["model"] == model]
            gains = [100 * (row["ttm"] - row["simple_match"]) for row in mine]
            cells = [_mean([100 * row[key] for row in mine]) for key in ("raw", "simple_match", "ttm")]
            spread = f"{min(gains):+.1f} .. {max(gains):+.1f}"
            lines.append([f"`{task}`", f"`{model}`", *cells, _mean(gains, sign=True), spread])
    head = ("task", "model", "raw group score", "SimpleMatch", "TTM", "gain", "gain, lowest .. highest")
    return page_parts.table(head, lines)


def _mean(values: list[float], sign: bool = False) -> str:
    mean = f"{statistics.fmean(values):+.1f}" if sign else f"{statistics.fmean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def transfer() -> dict:
    """The study of what adapting to each task does to the others."""
    document: dict = json.loads((FOLDER / "study_transfer.json").read_text(encoding="utf-8"))
    return document


def transfer_table() -> str:
    """What adapting the model to each task does to every one of them, as Markdown, points of percent."""
    data = transfer()["data"]
    tasks = data["measured_on"]
    lines = [["raw", *(f"{100 * data['raw'][task]:.2f}" for task in tasks)]]
    for task, cells in zip(data["adapted_on"], data["cells"], strict=True):
        differences = [
            f"{100 * cell['difference']:+.2f} ({100 * cell['ci'][0]:+.1f} .. {100 * cell['ci'][1]:+.1f})"
            for cell in cells
        ]
        lines.append([task, *differences])
    return page_parts.table(["", *tasks], lines, len(tasks))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parser.parse_args()
    for model in options.models.split(","):
        run(model, tuple(options.tasks.split(",")))


if __name__ == "__main__":
    main()
