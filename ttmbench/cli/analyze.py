"""``ttmbench analyze``: the paper's figures for any model and task, as JSON and as figures."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.console import echo
from ttmbench.cli.options import add_how, add_ttm_settings, add_verbosity, add_what, numbers
from ttmbench.cli.run import settings_of
from ttmbench.config import make_run_config
from ttmbench.errors import UsageError

if TYPE_CHECKING:
    from ttmbench.evaluator.analyze import Document

DEFAULT_OUTPUT = "analysis"
NOTHING = "-"
KNOWN = ("thresholds", "schedules", "supervision", "oracle", "tau", "lr", "alpha", "transfer")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench analyze``."""
    parser.add_argument("analysis", metavar="ANALYSIS", help=f"One of {', '.join(KNOWN)}")
    more = parser.add_argument_group("more options")
    add_what(parser, more)
    add_ttm_settings(parser)
    parser.add_argument(
        "--taus", metavar="X,Y", type=numbers, help="First thresholds for `tau` (default: select 15 to 30 %% at first)"
    )
    parser.add_argument(
        "--lrs", metavar="X,Y", type=numbers, help="Learning rates for `lr` (default: six around the usual one)"
    )
    add_how(parser, more)
    parser.add_argument("--output_path", "-o", metavar="DIR", help="Output directory (default: analysis)")
    add_verbosity(more)


def analyze(options: argparse.Namespace) -> int:
    """Analyses every task that the options name, writes a JSON document and a figure of each, and prints them."""
    if options.analysis not in KNOWN:
        raise UsageError(f"unknown analysis '{options.analysis}'; known: {', '.join(KNOWN)}")
    if options.taus is not None and options.analysis != "tau":
        raise UsageError(f"--taus belongs to the analysis 'tau', not to '{options.analysis}'")
    if options.lrs is not None and options.analysis != "lr":
        raise UsageError(f"--lrs belongs to the analysis 'lr', not to '{options.analysis}'")
    if options.lrs is not None and not all(math.isfinite(rate) and rate > 0 for rate in options.lrs):
        raise UsageError(f"--lrs are learning rates above 0, got {', '.join(map(str, options.lrs))}")
    settings = settings_of(options) | {"ttm": True}
    settings.setdefault("output_path", DEFAULT_OUTPUT)
    config = make_run_config(settings, "options")
    if config.output_path is not None and config.output_path.endswith(".json"):
        raise UsageError("analyze writes a JSON file and figures of each task, so --output_path is a folder")
    from ttmbench.evaluator.settings import choose

    choose(config)  # a wrong name is told before torch is imported, which takes seconds
    from ttmbench.evaluator.analyze import TRANSFER, analyze_tasks, transfer_document
    from ttmbench.report.plots import write_analysis
    from ttmbench.report.table import TableColumn, print_table

    started = datetime.now().astimezone()
    command = ["ttmbench", *sys.argv[1:]]
    documents: Iterable[Document]
    if options.analysis == TRANSFER:
        documents = [transfer_document(config, started, command)]
    else:
        documents = analyze_tasks(options.analysis, config, started, command, taus=options.taus, lrs=options.lrs)
    for document in documents:
        what = document.get("task") or f"{len(document['tasks'])} tasks"
        echo(f"{document['model_name']} on {what}: {document['analysis']}")
        heads, rows, below = _table(document)
        columns = [TableColumn(name, "number" if place else "key") for place, name in enumerate(heads)]
        print_table(columns, rows, caption=below)
        for file in write_analysis(Path(config.output_path or "."), document, started):
            echo(f"  {file}")
    return 0


Table = tuple[Sequence[str], list[list[str]], str]  # heads, rows, text below


def _table(document: Document) -> Table:
    """An analysis as a table; numbers stand from the second column on."""
    kinds = {
        "thresholds": _thresholds,
        "supervision": _supervision,
        "alpha": _alphas,
        "lr": _rates,
        "transfer": _matrix,
    }
    return kinds.get(document["analysis"], _curves)(document)


def _thresholds(document: Document) -> Table:
    data = document["data"]
    rows = []
    for share, value in data["band"].items():
        index = min(range(len(data["threshold"])), key=lambda place: abs(data["threshold"][place] - value))
        rows.append([f"{100 * float(share):.0f} %", f"{value:.3f}", _percent(data["accuracy"][index])])
    rows.append(["all", NOTHING, _percent(data["accuracy"][0])])
    return ("groups kept", "threshold", "accuracy among them"), rows, f"{data['tied']} tied"


def _supervision(document: Document) -> Table:
    bars = document["data"]["metrics"].items()
    rows = [[name, _percent(bar["value"]), _percent(bar["chance"])] for name, bar in bars]
    return ("metric", "percent", "chance"), rows, ""


def _curves(document: Document) -> Table:
    data = document["data"]
    rows = [["no adaptation", _percent(data["baseline"]), NOTHING]]
    for name, curve in data["curves"].items():
        kept = sum(row[0] for row in curve["coverage"]) / len(curve["coverage"])
        label = {"tau": f"tau_1 = {name}"}.get(document["analysis"], name)
        if name == "oracle":
            label += ", reads labels"
        rows.append([label, _with_spread(curve["final"], curve["final_seed_std"]), f"{100 * kept:.0f} %"])
    return ("TTM", document["metric"], "first kept"), rows, ""


def _rates(document: Document) -> Table:
    data = document["data"]
    rows = [["no adaptation", _percent(data["baseline"]), *[NOTHING] * 3]]
    broken = []
    for rate in data["rates"]:
        label = f"lr = {rate['lr']:g}" + (" (would be used)" if rate["lr"] == data["default"] else "")
        diverged = [reason for reason in rate["diverged"] if reason]
        if diverged:
            rows.append([label, *[NOTHING] * 4])
            broken.append(f"lr = {rate['lr']:g}: diverged with {len(diverged)} of {len(rate['diverged'])} seeds")
            continue
        rows.append(
            [
                label,
                _with_spread(rate["final"], rate["final_seed_std"]),
                _mean(rate["final_loss"]),
                f"{_percent(_mean_of(rate['confident_kept']))} %",
                NOTHING if rate["agreement"] is None else f"{100 * rate['agreement']:.1f} %",
            ]
        )
    heads = ("TTM", document["metric"], "last loss", "surest quarter kept", "seeds agree")
    return heads, rows, "\n".join([f"{document['metric']} reads labels; the rest does not", *broken])


def _alphas(document: Document) -> Table:
    data = document["data"]
    rows = [
        [name, _percent(curve["values"][0]), _percent(curve["values"][-1])] for name, curve in data["metrics"].items()
    ]
    same = [name for name, curve in data["metrics"].items() if not curve["depends_on_alpha"]]
    said = [f"the same for every alpha: {', '.join(same)}"] if same else []
    if data["held_out"] is not None:
        one, other = data["held_out"]["alphas"]
        value = _percent(data["held_out"]["value"])
        said.append(f"{data['tuned_for']}, alpha tuned on the other half: {value} (alpha {one:g} and {other:g})")
    return ("metric", "alpha 0", "alpha 1"), rows, "\n".join(said)


def _matrix(document: Document) -> Table:
    data = document["data"]
    rows = [["no adaptation", *(_percent(data["raw"][task]) for task in data["measured_on"])]]
    for task, cells in zip(data["adapted_on"], data["cells"], strict=True):
        rows.append([task, *(_difference(cell) for cell in cells)])
    metrics = ", ".join(dict.fromkeys(name.replace("_", " ") for name in data["metrics"].values()))
    said = f"{metrics}: what the adapted model gains or loses, with its 95 % interval over groups; it reads labels"
    return ("adapted to, measured on", *data["measured_on"]), rows, said


def _difference(cell: Document) -> str:
    if cell["difference"] is None:
        return NOTHING
    ends = "" if cell["ci"] is None else f" ({100 * cell['ci'][0]:+.1f} .. {100 * cell['ci'][1]:+.1f})"
    return f"{100 * cell['difference']:+.2f}{ends}"


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: Sequence[float | None]) -> str:
    mean = _mean_of(values)
    return NOTHING if mean is None else f"{mean:.3g}"


def _with_spread(value: float | None, spread: float | None) -> str:
    return _percent(value) + ("" if spread is None else f" ± {100 * spread:.2f}")


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.2f}"
