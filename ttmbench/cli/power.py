"""``ttmbench power``: which difference between two models a task can show, and what a smaller one would need."""

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
from ttmbench._util.files import to_json, write_atomically
from ttmbench.cli.options import add_verbosity, count, names, numbers
from ttmbench.errors import DataError, UsageError
from ttmbench.report.table import TableColumn, print_table
from ttmbench.results.clusters import cluster_numbers
from ttmbench.results.labels import seed_std_key
from ttmbench.results.power import detectable_difference, groups_needed, power_of, seeds_needed
from ttmbench.results.stored_runs import StoredRun, read_run

DISCORDANCES = (0.05, 0.1, 0.2, 0.3, 0.5)
DIFFERENCES = (0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class _Known:
    """What is known of the comparison.

    Attributes:
        groups: that there are.
        worth: how many groups that share no image know as much.
        discordances: shares of groups about which the models disagree.
        origin: where these are from.
        seed_std: of the difference, from one seed to another; None without seeds.
        seeds: of each model.
        observed: the difference that was measured; None without runs.
        metric: of which this is.
    """

    groups: int
    worth: float
    discordances: Sequence[float]
    origin: str
    seed_std: float | None = None
    seeds: int = 1
    observed: float | None = None
    metric: str | None = None

    @property
    def seed_variance(self) -> float:
        return 0.0 if self.seed_std is None else self.seed_std**2 / self.seeds


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench power``."""
    parser.add_argument("task", metavar="TASK", help="Task name or YAML file, or a task in the two runs")
    runs = parser.add_argument_group("estimate from two runs with --log_samples")
    runs.add_argument("--model_a", metavar="RESULTS", help="Results file for the first model")
    runs.add_argument(
        "--model_b", metavar="RESULTS", help="Results file for the second model, or the same file with --filters"
    )
    runs.add_argument("--metric", metavar="NAME", help="Metric (default: group_match, else the first in both)")
    runs.add_argument(
        "--filters", metavar="A,B", type=names, default=["none", "none"], help="Filter in each run (default: none,none)"
    )
    stated = parser.add_argument_group("or from expected values")
    stated.add_argument(
        "--discordance", metavar="X,Y", type=numbers, help="Fraction of groups on which the models disagree"
    )
    stated.add_argument(
        "--rate", metavar="X", type=_fraction, help="Expected score for both models, assumed independent"
    )
    stated.add_argument("--groups", metavar="N", type=count, help="Number of groups (default: from the task)")
    stated.add_argument(
        "--seed_std", metavar="X", type=_fraction, help="Standard deviation of the difference over seeds"
    )
    stated.add_argument("--seeds", metavar="N", type=count, help="Seeds per model, with --seed_std (default: 1)")
    asked = parser.add_argument_group("test")
    asked.add_argument(
        "--difference",
        metavar="X,Y",
        type=numbers,
        default=list(DIFFERENCES),
        help="Differences to detect, as fractions (default: 0.01,0.02,0.05,0.1)",
    )
    asked.add_argument("--power", metavar="X", type=_fraction, default=0.8, help="Power of the test")
    asked.add_argument("--alpha", metavar="X", type=_fraction, default=0.05, help="Significance level")
    asked.add_argument("--include_path", metavar="DIR", action="append", help="Directory with additional task files")
    asked.add_argument("--output_path", "-o", metavar="x.json", help="Also write the result to a file")
    add_verbosity(parser)


def power(options: argparse.Namespace) -> int:
    """Prints the smallest difference that is found, and what other differences would need."""
    for name in ("difference", "discordance"):
        wrong = [one for one in getattr(options, name) or () if not 0 < one <= 1]
        if wrong:
            raise UsageError(f"--{name} is a fraction above 0 and at most 1, got {wrong[0]:g}")
    if options.output_path and not options.output_path.endswith(".json"):
        raise UsageError(f"--output_path {options.output_path}: power writes .json")
    known = _measured(options) if options.model_a or options.model_b else _stated(options)
    rows = [_row(known, discordance, options) for discordance in known.discordances]
    _print(options, known, rows)
    if options.output_path:
        document = {
            **{name: getattr(options, name) for name in ("task", "power", "alpha")},
            **{name: getattr(known, name) for name in ("metric", "groups", "worth", "seed_std", "seeds", "observed")},
            "rows": rows,
        }
        path = Path(options.output_path)
        write_atomically(path, lambda target: target.write_text(to_json(document), encoding="utf-8"))
        echo(f"power: {path}")
    return 0


def _stated(options: argparse.Namespace) -> _Known:
    """What the user expects, for the size that the task file states."""
    from ttmbench.data.catalog import find_task
    from ttmbench.plugins.registry import build_registry

    if options.seeds is not None and options.seed_std is None:
        raise UsageError("--seeds needs --seed_std: without a spread over seeds their number says nothing")
    if options.metric is not None or options.filters != ["none", "none"]:
        raise UsageError("--metric and --filters are of --model_a and --model_b")
    spec = find_task(build_registry(options.include_path or []), options.task).spec
    groups = options.groups or spec.group.n_groups
    if groups is None:
        raise UsageError(f"task '{spec.task}' does not state how many groups it has; give --groups")
    discordances, origin = options.discordance, "--discordance"
    if discordances is None and options.rate is not None:
        discordances, origin = [2 * options.rate * (1 - options.rate)], "models independent of each other: the most"
    return _Known(
        groups,
        groups,
        DISCORDANCES if discordances is None else discordances,
        "for example; measured with --model_a and --model_b" if discordances is None else origin,
        options.seed_std,
        options.seeds or 1,
    )


def _measured(options: argparse.Namespace) -> _Known:
    """Disagreement, clusters and spread over seeds of two runs."""
    given = [name for name in ("discordance", "rate", "seed_std", "groups", "seeds") if getattr(options, name)]
    if given:
        raise UsageError(f"--{given[0]} is measured where --model_a and --model_b are given; leave it out")
    if not (options.model_a and options.model_b) or len(options.filters) != 2:
        raise UsageError("both --model_a and --model_b are needed, and two --filters, such as none,ttm")
    runs = [read_run(Path(name)) for name in (options.model_a, options.model_b)]
    task, sides = options.task, list(zip(runs, options.filters, strict=True))
    found = [run.values.get(task, {}).get(name) for run, name in sides]
    for (run, name), values in zip(sides, found, strict=True):
        if values is None:
            raise UsageError(f"{run.path} has no samples of task '{task}' with the filter '{name}'")
    left, right = (values or {} for values in found)
    metric = options.metric or next((one for one in ("group_match", *left) if one in left and one in right), None)
    if metric is None or metric not in left or metric not in right:
        raise UsageError(f"the runs share no metric {metric or ''} of task '{task}'; known: {', '.join(left)}")
    ids = [group for group in left[metric] if group in right[metric]]
    difference = np.array([right[metric][group] - left[metric][group] for group in ids])
    if not difference.any():
        raise DataError(f"the two runs agree about every group of task '{task}'; state a --discordance instead")
    clusters = cluster_numbers(ids, [run.groups[task].clusters for run in runs])
    effect = 1.0 if clusters is None else stats.design_effect((difference + 1) / 2, clusters)
    return _Known(
        len(ids),
        len(ids) / effect,
        [float(np.mean(np.square(difference)))],
        "measured",
        *_seeds(sides, task, metric),
        float(difference.mean()),
        metric,
    )


def _seeds(sides: Sequence[tuple[StoredRun, str]], task: str, metric: str) -> tuple[float | None, int]:
    """The spread of the difference over seeds that were drawn apart, and the smaller number of seeds."""
    spreads, counts = [], []
    for run, name in sides:
        spread = run.document.results.get(task, {}).get(seed_std_key(metric, name))
        if spread is not None:
            spreads.append(float(spread))
            training = run.document.training(task, name)
            counts.append(len(training.seeds) if training is not None else 1)
    return (math.hypot(*spreads), min(counts)) if spreads else (None, 1)


def _row(known: _Known, discordance: float, options: argparse.Namespace) -> dict[str, Any]:
    level = {"power": options.power, "alpha": options.alpha}
    effect = known.groups / known.worth
    asked = []
    for difference in options.difference:
        alone = groups_needed(difference, discordance, **level, seed_variance=known.seed_variance)
        found, seeds = None, None
        if difference <= discordance:
            found = power_of(known.worth, discordance, difference, options.alpha, known.seed_variance)
            if known.seed_std is not None:
                seeds = seeds_needed(known.worth, difference, discordance, known.seed_std, **level)
        groups = None if alone is None else math.ceil(alone * effect)
        asked.append({"difference": difference, "power": found, "groups": groups, "seeds": seeds})
    smallest = detectable_difference(known.worth, discordance, **level, seed_variance=known.seed_variance)
    return {"discordance": discordance, "smallest_difference": smallest, "differences": asked}


def _print(options: argparse.Namespace, known: _Known, rows: Sequence[Mapping[str, Any]]) -> None:
    shares = f", worth {known.worth:.0f} that share no image" if known.worth < known.groups else ""
    echo(f"{options.task}: {known.groups} groups{shares}; models disagree about some of them ({known.origin})")
    heads = ["disagree", "smallest found", "difference", "power", "groups needed"]
    heads += [] if known.seed_std is None else ["seeds needed"]
    cells = []
    for row in rows:
        head = [f"{100 * row['discordance']:.1f}", _percent(row["smallest_difference"])]
        for one in row["differences"]:
            numbers_needed = [_whole(one["groups"]), *([] if known.seed_std is None else [_whole(one["seeds"])])]
            cells.append([*head, f"{100 * one['difference']:g}", _percent(one["power"]), *numbers_needed])
            head = ["", ""]
    title = f"Found with {100 * options.power:g} % power at alpha {options.alpha:g}: percent"
    print_table([TableColumn(name, "number") for name in heads], cells, title=title)
    echo()
    if known.observed is not None:
        echo(f"{known.metric}: the difference measured is {100 * known.observed:+.2f}")
    if known.seed_std is not None:
        echo(
            f"The spread over seeds ({100 * known.seed_std:.2f}, {known.seeds} seeds) counts as chance: models trained "
            "again are meant, by the normal approximation"
        )
    else:
        echo("By McNemar's exact test, as `compare` has it; '-': models that disagree so seldom cannot show it")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _whole(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a fraction between 0 and 1, got {text}")
    return value
