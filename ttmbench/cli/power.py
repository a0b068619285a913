"""``ttmbench power``: the smallest difference between two models that a task can detect, and what others need."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench._util.console import echo
from ttmbench._util.files import to_json, write_text
from ttmbench._util.option_values import split_names
from ttmbench.cli.options import add_task_files, count, numbers
from ttmbench.errors import DataError, UsageError
from ttmbench.report.table import NOTHING, TableColumn, percent, print_table
from ttmbench.results.clusters import cluster_numbers
from ttmbench.results.labels import seed_std_key
from ttmbench.results.power import detectable_difference, groups_needed, power_of, seeds_needed
from ttmbench.results.stored_runs import StoredRun, read_run

DISCORDANCES = (0.05, 0.1, 0.2, 0.3, 0.5)
DIFFERENCES = (0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class _Design:
    """What a comparison is based on, expected or measured."""

    groups: int
    worth: float  # the effective number of independent groups
    discordances: Sequence[float]  # fractions of groups on which the models disagree
    origin: str  # of the discordances
    seed_std: float | None = None  # of the difference
    seeds: int = 1  # per model
    observed: float | None = None  # the measured difference
    metric: str | None = None

    @property
    def seed_variance(self) -> float:
        return 0.0 if self.seed_std is None else self.seed_std**2 / self.seeds


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench power``."""
    parser.add_argument("task", metavar="TASK", help="Task name or YAML file, or a task in the two runs")
    add = parser.add_argument_group("estimate from two runs with --log_samples").add_argument
    add("--model_a", metavar="RESULTS", help="Results file for the first model")
    add("--model_b", metavar="RESULTS", help="Results file for the second model, or the same file with --filters")
    add("--metric", metavar="NAME", help="Metric (default: group_match, else the first in both)")
    filters = "Filter in each run (default: none,none)"
    add("--filters", metavar="A,B", type=split_names, default=["none", "none"], help=filters)
    add = parser.add_argument_group("or from expected values").add_argument
    add("--discordance", metavar="X,Y", type=numbers, help="Fraction of groups on which the models disagree")
    add("--rate", metavar="X", type=_fraction, help="Expected score for both models, assumed independent")
    add("--groups", metavar="N", type=count, help="Number of groups (default: from the task)")
    add("--seed_std", metavar="X", type=_fraction, help="Standard deviation of the difference over seeds")
    add("--seeds", metavar="N", type=count, help="Seeds per model, with --seed_std (default: 1)")
    test = parser.add_argument_group("test")
    differences = "Differences to detect, as fractions (default: 0.01,0.02,0.05,0.1)"
    test.add_argument("--difference", metavar="X,Y", type=numbers, default=list(DIFFERENCES), help=differences)
    test.add_argument("--power", metavar="X", type=_fraction, default=0.8, help="Power of the test")
    test.add_argument("--alpha", metavar="X", type=_fraction, default=0.05, help="Significance level")
    add_task_files(test)
    test.add_argument("--output_path", "-o", metavar="x.json", help="Also write the result to a file")


def power(options: argparse.Namespace) -> int:
    """Print the smallest detectable difference, and what other differences need."""
    for name in ("difference", "discordance"):
        for value in getattr(options, name) or ():
            if not 0 < value <= 1:
                raise UsageError(f"--{name} must be a fraction above 0 and at most 1, got {value:g}")
    if options.output_path and not options.output_path.endswith(".json"):
        raise UsageError(f"--output_path must end with .json, got {options.output_path}")
    design = _measured(options) if options.model_a or options.model_b else _expected(options)
    rows = [_row(design, discordance, options) for discordance in design.discordances]
    _print(options, design, rows)
    if options.output_path:
        document = {
            **{name: getattr(options, name) for name in ("task", "power", "alpha")},
            **{name: getattr(design, name) for name in ("metric", "groups", "worth", "seed_std", "seeds", "observed")},
            "rows": rows,
        }
        write_text(Path(options.output_path), to_json(document))
        echo(f"power: {options.output_path}")
    return 0


def _expected(options: argparse.Namespace) -> _Design:
    """What the user expects, for the number of groups that the task file has."""
    from ttmbench.data.catalog import find_task
    from ttmbench.plugins.registry import build_registry

    if options.seeds is not None and options.seed_std is None:
        raise UsageError("--seeds needs --seed_std, the standard deviation over seeds")
    if options.metric is not None or options.filters != ["none", "none"]:
        raise UsageError("--metric and --filters need two runs, --model_a and --model_b")
    spec = find_task(build_registry(options.include_path or []), options.task).spec
    groups = options.groups or spec.group.n_groups
    if groups is None:
        raise UsageError(f"task '{spec.task}' does not give its number of groups; set --groups")
    discordances: Sequence[float] = DISCORDANCES
    origin = "examples; measured with --model_a and --model_b"
    if options.discordance is not None:
        discordances, origin = options.discordance, "--discordance"
    elif options.rate is not None:
        discordances, origin = (2 * options.rate * (1 - options.rate),), "that of independent models, the maximum"
    return _Design(groups, groups, discordances, origin, options.seed_std, options.seeds or 1)


def _measured(options: argparse.Namespace) -> _Design:
    """Disagreement, clusters and standard deviation over seeds of two runs."""
    for name in ("discordance", "rate", "seed_std", "groups", "seeds"):
        if getattr(options, name):
            raise UsageError(f"--{name} is measured from --model_a and --model_b; omit it")
    if not (options.model_a and options.model_b) or len(options.filters) != 2:
        raise UsageError("both --model_a and --model_b are needed, and two --filters, such as none,ttm")
    runs = [read_run(Path(name)) for name in (options.model_a, options.model_b)]
    task, sides = options.task, list(zip(runs, options.filters, strict=True))
    left, right = (_values(run, task, name) for run, name in sides)
    metric = options.metric or next((name for name in ("group_match", *left) if name in left and name in right), None)
    if metric is None or metric not in left or metric not in right:
        raise UsageError(f"the runs share no metric {metric or ''} of task '{task}'; known: {', '.join(left)}")
    ids = [group for group in left[metric] if group in right[metric]]
    difference = np.array([right[metric][group] - left[metric][group] for group in ids])
    if not difference.any():
        raise DataError(f"the two runs agree on every group of task '{task}'; give a --discordance instead")
    clusters = cluster_numbers(ids, [run.groups[task].clusters for run in runs])
    effect = 1.0 if clusters is None else stats.design_effect((difference + 1) / 2, clusters)
    return _Design(
        len(ids),
        len(ids) / effect,
        [float(np.mean(np.square(difference)))],
        "measured",
        *_seeds(sides, task, metric),
        float(difference.mean()),
        metric,
    )


def _values(run: StoredRun, task: str, filter_: str) -> dict[str, dict[str, float]]:
    values = run.values.get(task, {}).get(filter_)
    if values is None:
        raise UsageError(f"{run.path} has no samples of task '{task}' with filter '{filter_}'")
    return values


def _seeds(sides: Sequence[tuple[StoredRun, str]], task: str, metric: str) -> tuple[float | None, int]:
    """The standard deviation of the difference over independent seeds, and the smaller number of seeds."""
    spreads, counts = [], []
    for run, name in sides:
        spread = run.document.results.get(task, {}).get(seed_std_key(metric, name))
        if spread is not None:
            spreads.append(float(spread))
            training = run.document.training(task, name)
            counts.append(len(training.seeds) if training is not None else 1)
    return (math.hypot(*spreads), min(counts)) if spreads else (None, 1)


def _row(design: _Design, discordance: float, options: argparse.Namespace) -> dict[str, Any]:
    level = {"power": options.power, "alpha": options.alpha}
    variance = design.seed_variance
    rows = []
    for difference in options.difference:
        independent = groups_needed(difference, discordance, **level, seed_variance=variance)
        estimate, seeds = None, None
        if difference <= discordance:
            estimate = power_of(design.worth, discordance, difference, options.alpha, variance)
            if design.seed_std is not None:
                seeds = seeds_needed(design.worth, difference, discordance, design.seed_std, **level)
        groups = None if independent is None else math.ceil(independent * (design.groups / design.worth))
        rows.append({"difference": difference, "power": estimate, "groups": groups, "seeds": seeds})
    smallest = detectable_difference(design.worth, discordance, **level, seed_variance=variance)
    return {"discordance": discordance, "smallest_difference": smallest, "differences": rows}


def _print(options: argparse.Namespace, design: _Design, rows: Sequence[Mapping[str, Any]]) -> None:
    worth = f", equivalent to {design.worth:.0f} independent ones" if design.worth < design.groups else ""
    echo(f"{options.task}: {design.groups} groups{worth}; disagreement between the models: {design.origin}")
    has_seeds = design.seed_std is not None
    heads = ["disagree", "smallest found", "difference", "power", "groups needed", *["seeds needed"] * has_seeds]
    cells = []
    for row in rows:
        head = [f"{100 * row['discordance']:.1f}", percent(row["smallest_difference"])]
        for difference in row["differences"]:
            needed = [difference["groups"], *[difference["seeds"]] * has_seeds]
            cells.append([*head, f"{100 * difference['difference']:g}", percent(difference["power"])])
            cells[-1] += [NOTHING if number is None else f"{number:,}" for number in needed]
            head = ["", ""]
    title = f"Found with {100 * options.power:g} % power at alpha {options.alpha:g}: percent"
    print_table([TableColumn(name, "number") for name in heads], cells, title=title)
    echo()
    if design.observed is not None:
        echo(f"{design.metric}: the measured difference is {100 * design.observed:+z.2f}")
    if design.seed_std is not None:
        echo(
            f"The standard deviation over seeds ({100 * design.seed_std:.2f}, {design.seeds} seeds) is included: the "
            "difference is that of newly trained models, by the normal approximation"
        )
    else:
        echo("Exact McNemar test, as in `compare`; '-': models that disagree so rarely cannot show this difference")


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a fraction between 0 and 1, got {text}")
    return value
