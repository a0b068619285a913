"""``ttmbench analyze``: the paper's analyses for any model and task, as JSON and figures."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean

from ttmbench._util.console import echo
from ttmbench.cli.parser import MACHINE, WHAT, add_run_options
from ttmbench.cli.run import settings_of
from ttmbench.config import make_run_config
from ttmbench.errors import UsageError
from ttmbench.report.terminal import NOTHING, TableColumn, interval_text, percent, points, print_table
from ttmbench.results.numbers import RAW
from ttmbench.types import Record

LEVEL = 0.05  # of tests, after Holm's correction
KNOWN = ("thresholds", "schedules", "supervision", "oracle", "tau", "lr", "alpha", "transfer", "methods")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench analyze``."""
    parser.add_argument("analysis", metavar="ANALYSIS", help=f"One of {', '.join(KNOWN)}")
    training = ("ttm_args", "ttm_preset", "seeds", "methods", "method_args")
    intervals = ("compile", "interval", "bootstrap_iters")
    add_run_options(parser, *WHAT, *training, *MACHINE, *intervals, "output_path", output_path="analysis")
    thresholds = "First thresholds for `tau` (default: select 15 to 30 %% at first)"
    parser.add_argument("--taus", metavar="X,Y", type=numbers, help=thresholds)
    rates = "Learning rates for `lr` (default: six around the usual one)"
    parser.add_argument("--lrs", metavar="X,Y", type=numbers, help=rates)


def numbers(text: str) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers separated by commas, got {text}") from None


def analyze(options: argparse.Namespace) -> int:
    """Analyse every task, print a table and write a JSON document and a figure of each."""
    if options.analysis not in KNOWN:
        raise UsageError(f"unknown analysis '{options.analysis}'; known: {', '.join(KNOWN)}")
    for option, analysis in (("taus", "tau"), ("lrs", "lr")):
        if getattr(options, option) is not None and options.analysis != analysis:
            raise UsageError(f"--{option} is for the analysis '{analysis}', got '{options.analysis}'")
    if options.lrs is not None and not all(math.isfinite(rate) and rate > 0 for rate in options.lrs):
        raise UsageError(f"--lrs must be learning rates above 0, got {', '.join(map(str, options.lrs))}")
    compares = options.analysis == "methods"
    settings = {"output_path": "analysis", **settings_of(options)}
    if bool(settings.get("methods")) is not compares:
        raise UsageError("'analyze methods' needs --methods A,B, and other analyses take none")
    settings |= {} if compares else {"methods": ["ttm"]}
    config = make_run_config(settings, "options")
    if config.output_path is not None and config.output_path.endswith(".json"):
        raise UsageError(f"--output_path must be a directory for analyze, got {config.output_path}")
    from ttmbench.evaluator.evaluate import resolve

    resolve(config)  # reports a wrong name before torch is imported, which takes seconds
    from ttmbench.evaluator.analyze import documents
    from ttmbench.report.charts import write_analysis

    started = datetime.now().astimezone()
    grid = options.taus if options.taus is not None else options.lrs
    for document in documents(options.analysis, config, started, ["ttmbench", *sys.argv[1:]], grid):
        task = document.get("task") or f"{len(document['tasks'])} tasks"
        echo(f"{document['model_name']} on {task}: {document['analysis']}")
        heads, rows, caption = _TABLES.get(document["analysis"], _curves)(document)
        kinds = ("key", *["number"] * (len(heads) - 1))
        cells = [[cell if isinstance(cell, str) else percent(cell) for cell in row] for row in rows]
        print_table(list(map(TableColumn, heads, kinds)), cells, caption=caption)
        for file in write_analysis(Path(config.output_path or "."), document, started):
            echo(f"  {file}")
    return 0


Rows = list[list[str | float | None]]
Table = tuple[Sequence[str], Rows, str]
"""Heads, rows and caption; all columns but the first hold numbers, which are fractions unless they are texts."""


def _thresholds(document: Record) -> Table:
    data, rows = document["data"], Rows()
    for fraction, value in data["band"].items():
        index = min(range(len(data["threshold"])), key=lambda at: abs(data["threshold"][at] - value))
        rows.append([f"{100 * float(fraction):.0f} %", f"{value:.3f}", data["accuracy"][index]])
    rows.append(["all", NOTHING, data["accuracy"][0]])
    return ("selected", "threshold", "accuracy of selected"), rows, f"{data['tied']} tied"


def _supervision(document: Record) -> Table:
    bars = document["data"]["metrics"].items()
    return ("metric", "percent", "chance"), [[name, bar["value"], bar["chance"]] for name, bar in bars], ""


def _curves(document: Record) -> Table:
    data, rows = document["data"], Rows()
    for name, curve in data["curves"].items():
        selected = fmean(row[0] for row in curve["coverage"])
        label = f"tau_1 = {name}" if document["analysis"] == "tau" else name
        label += " (uses labels)" if name == "oracle" else ""
        rows.append([label, percent(curve["final"], std=curve["final_seed_std"]), f"{100 * selected:.0f} %"])
    return ("TTM", document["metric"], "first selected"), [["no adaptation", data["baseline"], NOTHING], *rows], ""


def _rates(document: Record) -> Table:
    data, notes = document["data"], [f"{document['metric']} uses labels; the other columns do not"]
    rows: Rows = [["no adaptation", data["baseline"], *[NOTHING] * 3]]
    for rate in data["rates"]:
        label = f"lr = {rate['lr']:g}" + (" (default)" if rate["lr"] == data["default"] else "")
        diverged = sum(reason is not None for reason in rate["diverged"])
        if diverged:
            rows.append([label, *[NOTHING] * 4])
            notes.append(f"lr = {rate['lr']:g}: diverged with {diverged} of {len(rate['diverged'])} seeds")
            continue
        losses, kept = ([one for one in rate[key] if one is not None] for key in ("final_loss", "confident_kept"))
        value, loss = percent(rate["final"], std=rate["final_seed_std"]), f"{fmean(losses):.3g}" if losses else NOTHING
        agreement = NOTHING if rate["agreement"] is None else f"{100 * rate['agreement']:.1f} %"
        rows.append([label, value, loss, f"{percent(fmean(kept) if kept else None)} %", agreement])
    heads = ("TTM", document["metric"], "last loss", "most confident unchanged", "seeds agree")
    return heads, rows, "\n".join(notes)


def _alphas(document: Record) -> Table:
    data, curves = document["data"], document["data"]["metrics"].items()
    constant = [name for name, curve in curves if not curve["depends_on_alpha"]]
    notes = [f"independent of alpha: {', '.join(constant)}"] if constant else []
    if data["held_out"] is not None:
        value, (first, second) = percent(data["held_out"]["value"]), data["held_out"]["alphas"]
        notes.append(f"{data['tuned_for']}, alpha tuned on the other half: {value} (alpha {first:g} and {second:g})")
    rows = [[name, curve["values"][0], curve["values"][-1]] for name, curve in curves]
    return ("metric", "alpha 0", "alpha 1"), rows, "\n".join(notes)


def _matrix(document: Record) -> Table:
    data = document["data"]
    rows: Rows = [["no adaptation", *(data["raw"][task] for task in data["measured_on"])]]
    for task, cells in zip(data["adapted_on"], data["cells"], strict=True):
        ends = ["" if cell["ci"] is None else f" ({interval_text(cell['ci'], signed=True)})" for cell in cells]
        rows.append([task, *(points(cell["difference"]) + end for cell, end in zip(cells, ends, strict=True))])
    metrics = ", ".join(dict.fromkeys(name.replace("_", " ") for name in data["metrics"].values()))
    caption = f"{metrics}: change by adaptation, with its 95 % interval over groups; it uses labels"
    return ("adapted to, measured on", *data["measured_on"]), rows, caption


def _methods(document: Record) -> Table:
    """Methods in the order of the run; those that differ from their baseline after Holm's correction are marked."""
    about, rows = document["data"]["methods"], Rows()
    for row in document["data"]["rows"]:
        is_raw, more = row["method"] == RAW, about[row["method"]]
        gain, p = (NOTHING, NOTHING) if is_raw else (points(row["gain"]), f"{row['p_holm']:.2g}")
        mark = " *" if not is_raw and row["p_holm"] < LEVEL else ""
        value, ends = percent(row["value"], std=row["seed_std"]), interval_text(row.get("ci"), signed=True)
        cost = [NOTHING if more[key] is None else f"{more[key]:.1f}" for key in ("tower_passes", "seconds")]
        rows += [[row["metric"]]] if is_raw else []
        name = "raw" if is_raw else row["method"]
        rows.append([name, value, gain + mark, ends, p, *cost, percent(more["calibration_error"], 1)])
    caption = (
        "gain over the raw metric, or over SimpleMatch for scores that assume a matching; * differs at "
        f"{LEVEL:g} after Holm's correction over the methods (paired permutation test)\n"
        "passes: of images and captions through the towers; scoring the task once is 2\n"
        "ECE: calibration error of each image's answer, for scores that are logits"
    )
    heads = ("method", "value", "gain", "95 % interval", "p", "passes", "s", "ECE")
    return heads, rows, "\n".join([caption, *(f"failed: {error}" for error in document["errors"])])


_TABLES = {
    **{"thresholds": _thresholds, "supervision": _supervision, "alpha": _alphas, "lr": _rates, "transfer": _matrix},
    "methods": _methods,
}
