"""Judges rules that choose a learning rate without labels, on the runs of ``scripts/docs/learning_rates.py``.

    python scripts/docs/learning_rate_rules.py    # the tables of docs/learning-rate.md

A rule sees one search: for every rate the mean last loss, how far seeds agree, how far the surest quarter is kept and
how far the last iteration changed nothing. What the rate it names gives is read from the labels only afterwards.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUMMARY = Path(__file__).resolve().parents[2] / "results" / "reference" / "study_learning_rates.json"
DEFAULT = 5e-4  # of the built-in models
CONSTANTS = (1e-4, 2e-4)  # no rules, to compare with
LIMIT = 2.0  # points that a rule may lose


@dataclass(frozen=True)
class Signs:
    """What a search shows of a rate without labels; shares from 0 to 1."""

    loss: float
    agreement: float | None
    kept: float
    settled: float


Search = Mapping[float, Signs]
Rule = Callable[[Search], float]


def smallest_loss(allowed: Callable[[Signs], bool] = lambda signs: True) -> Rule:
    """The smallest last loss among the rates that are allowed; if none is, the rate at which most is kept."""

    def rule(search: Search) -> float:
        good = [rate for rate, signs in search.items() if allowed(signs)]
        if not good:
            return max(search, key=lambda rate: (search[rate].agreement or 0.0, search[rate].kept))
        return min(good, key=lambda rate: search[rate].loss)

    return rule


def smallest_rate_near(factor: float) -> Rule:
    """The smallest rate whose last loss is at most so many times the smallest."""

    def rule(search: Search) -> float:
        best = min(signs.loss for signs in search.values())
        return min(rate for rate, signs in search.items() if signs.loss <= factor * best)

    return rule


def agree(share: float) -> Rule:
    """The smallest loss among rates at which seeds match so many units alike."""
    return smallest_loss(lambda signs: signs.agreement is not None and signs.agreement >= share)


NEEDS_SEEDS = {
    "smallest loss, seeds agree on 85 %": agree(0.85),
    "smallest loss, seeds agree on 90 %": agree(0.90),
    "smallest loss, seeds agree on 95 %": agree(0.95),
}
ALONE = {
    "smallest loss": smallest_loss(),
    "smallest loss, 90 % of the surest kept": smallest_loss(lambda signs: signs.kept >= 0.90),
    "smallest loss, 95 % of the surest kept": smallest_loss(lambda signs: signs.kept >= 0.95),
    "smallest loss, 95 % settled": smallest_loss(lambda signs: signs.settled >= 0.95),
    "smallest rate within 1.5 times the smallest loss": smallest_rate_near(1.5),
    "smallest rate within 2 times the smallest loss": smallest_rate_near(2.0),
}
SEARCHES = {"2 seeds": (0, 1), "1 seed": (0,)}


def read() -> list[dict[str, Any]]:
    """The summary."""
    rows: list[dict[str, Any]] = json.loads(SUMMARY.read_text(encoding="utf-8"))
    return rows


def cells(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Tasks and models that were run at every rate."""
    whole = [(row["task"], row["model"]) for row in rows]
    rates = {row["lr"] for row in rows}
    return sorted({cell for cell in whole if whole.count(cell) == len(rates)})


def signs(row: Mapping[str, Any], seeds: tuple[int, ...]) -> Signs:
    """What some seeds of an entry show."""

    def mean(name: str) -> float:
        return statistics.fmean(row[name][row["seeds"].index(seed)] for seed in seeds)

    pairs = [value for pair, value in row["agreement"].items() if {int(one) for one in pair.split(",")} <= set(seeds)]
    agreement = statistics.fmean(pairs) if pairs else None
    return Signs(mean("final_loss"), agreement, mean("confident_kept"), mean("settled"))


def results(rows: list[dict[str, Any]], task: str, model: str) -> dict[float, list[float]]:
    """What every rate gives, percent by seed. Reads labels."""
    mine = [row for row in rows if (row["task"], row["model"]) == (task, model)]
    return {row["lr"]: [100 * value for value in row["reads_labels"]["ttm"]] for row in mine}


def search(rows: list[dict[str, Any]], task: str, model: str, seeds: tuple[int, ...]) -> Search:
    """What a search with some seeds sees."""
    mine = [row for row in rows if (row["task"], row["model"]) == (task, model)]
    return {row["lr"]: signs(row, seeds) for row in mine}


def measured(rows: list[dict[str, Any]]) -> str:
    """The Markdown table of all rates."""
    lines = ["| task, model (raw) | lr | TTM | seeds | agree | kept | loss |", "|---|---:|---:|---|---:|---:|---:|"]
    for task, model in cells(rows):
        for row in rows:
            if (row["task"], row["model"]) != (task, model):
                continue
            ttm = [100 * value for value in row["reads_labels"]["ttm"]]
            seen = signs(row, tuple(row["seeds"]))
            agreement = "-" if seen.agreement is None else f"{100 * seen.agreement:.1f}"
            each = ", ".join(f"{value:.1f}" for value in ttm)
            lines.append(
                f"| `{task}`, `{model}` ({100 * row['reads_labels']['raw']:.1f}) | {row['lr']:g} "
                f"| {statistics.fmean(ttm):.1f} | {each} | {agreement} | {100 * seen.kept:.1f} | {seen.loss:.2f} |"
            )
    return "\n".join(lines)


def noise(rows: list[dict[str, Any]]) -> float:
    """Two standard errors of the difference of two rates, each the mean of two seeds, in points.

    The spread over seeds is pooled over all cells and all rates but the largest, which breaks most models.
    """
    largest = max(row["lr"] for row in rows)
    spreads = [
        statistics.variance(values)
        for cell in cells(rows)
        for rate, values in results(rows, *cell).items()
        if rate < largest
    ]
    return 2 * math.sqrt(2 * statistics.fmean(spreads) / 2)


@dataclass(frozen=True)
class Verdict:
    """A rule with a search over all cells; points of percent.

    Attributes:
        chosen: cell -> rate.
        below_best: cell -> what the rate gives less the best of the grid.
        over_default: cell -> what it gives less the default.
    """

    chosen: dict[tuple[str, str], float]
    below_best: dict[tuple[str, str], float]
    over_default: dict[tuple[str, str], float]

    def holds(self, noise: float) -> bool:
        """Never more than the limit below the best rate of the grid, nor below the default by more than noise."""
        return min(self.below_best.values()) >= -LIMIT and min(self.over_default.values()) >= -noise


def judge(rows: list[dict[str, Any]], seeds: tuple[int, ...], rule: Rule) -> Verdict:
    """A rule on every cell, with a search of some seeds."""
    chosen: dict[tuple[str, str], float] = {}
    below, over = {}, {}
    for cell in cells(rows):
        rate = chosen[cell] = rule(search(rows, *cell, seeds))
        ends = {lr: statistics.fmean(values) for lr, values in results(rows, *cell).items()}
        below[cell], over[cell] = ends[rate] - max(ends.values()), ends[rate] - ends[DEFAULT]
    return Verdict(chosen, below, over)


def judged(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, Verdict]]:
    """Every rule with every search that it can do with: name of the rule, of the search, verdict."""
    for name, seeds in SEARCHES.items():
        for text, rule in {**(NEEDS_SEEDS if len(seeds) > 1 else {}), **ALONE}.items():
            yield text, name, judge(rows, seeds, rule)


def rules(rows: list[dict[str, Any]]) -> str:
    """The Markdown table of all rules and searches."""
    lines = [
        "| rule | search | worst below the best | cells > 2 below it | worst against the default | mean against it |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for rate in (DEFAULT, *CONSTANTS):
        text = "the default, 5e-4" if rate == DEFAULT else f"always {rate:g}"
        lines.append(_line(text, "none", judge(rows, (0,), lambda search, rate=rate: rate)))  # type: ignore[misc]
    lines.extend(_line(*found) for found in judged(rows))
    return "\n".join(lines)


def _line(text: str, name: str, verdict: Verdict) -> str:
    worse = sum(value < -LIMIT for value in verdict.below_best.values())
    over = list(verdict.over_default.values())
    return (
        f"| {text} | {name} | {min(verdict.below_best.values()):.1f} | {worse} of {len(over)} "
        f"| {min(over):+.1f} | {statistics.fmean(over):+.1f} |"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    rows = read()
    print(measured(rows), rules(rows), f"noise: {noise(rows):.1f} points", sep="\n\n")


if __name__ == "__main__":
    main()
