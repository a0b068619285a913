"""``ttmbench analyze``: the paper's figures for any model and task, as JSON and as figures."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ttmbench._util.console import echo
from ttmbench.cli.options import add_how, add_ttm_settings, add_verbosity, add_what, numbers
from ttmbench.cli.run import settings_of
from ttmbench.config import make_run_config
from ttmbench.errors import UsageError

DEFAULT_OUTPUT = "analysis"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench analyze``."""
    parser.add_argument(
        "analysis", metavar="ANALYSIS", help="thresholds, schedules, supervision, oracle, tau, lr, alpha"
    )
    add_what(parser.add_argument_group("what to analyse"))
    ttm = parser.add_argument_group("test-time stage")
    add_ttm_settings(ttm)
    ttm.add_argument("--taus", metavar="X,Y", type=numbers, help="tau: first thresholds (default: keep 15 to 30 %%)")
    ttm.add_argument(
        "--lrs", metavar="X,Y", type=numbers, help="lr: rates to compare (default: six around the one used)"
    )
    add_how(parser.add_argument_group("how to run"))
    out = parser.add_argument_group("output")
    out.add_argument("--output_path", "-o", metavar="DIR", help="where files go (default: analysis)")
    add_verbosity(out)


def analyze(options: argparse.Namespace) -> int:
    """Analyses every task that the options name, writes a JSON document and a figure of each, and prints them."""
    settings = settings_of(options) | {"ttm": True}
    settings.setdefault("output_path", DEFAULT_OUTPUT)
    config = make_run_config(settings, "options")
    if config.output_path is not None and config.output_path.endswith(".json"):
        raise UsageError("analyze writes a JSON file and figures of each task, so --output_path is a folder")
    from ttmbench.evaluator.analyze import analyze_tasks
    from ttmbench.report.analysis_files import write_analysis
    from ttmbench.ttm.analysis import ALPHA, ANALYSES

    if options.analysis not in (*ANALYSES, ALPHA):
        raise UsageError(f"unknown analysis '{options.analysis}'; known: {', '.join((*ANALYSES, ALPHA))}")
    if options.taus is not None and options.analysis != "tau":
        raise UsageError(f"--taus belongs to the analysis 'tau', not to '{options.analysis}'")
    if options.lrs is not None and options.analysis != "lr":
        raise UsageError(f"--lrs belongs to the analysis 'lr', not to '{options.analysis}'")
    if options.lrs is not None and not all(math.isfinite(rate) and rate > 0 for rate in options.lrs):
        raise UsageError(f"--lrs are learning rates above 0, got {', '.join(map(str, options.lrs))}")
    started = datetime.now().astimezone()
    command = ["ttmbench", *sys.argv[1:]]
    for document in analyze_tasks(options.analysis, config, started, command, taus=options.taus, lrs=options.lrs):
        echo(f"{document['model_name']} on {document['task']}: {document['analysis']}")
        for line in _lines(document):
            echo(f"  {line}")
        for file in write_analysis(Path(config.output_path or "."), document, started):
            echo(f"  {file}")
    return 0


def _lines(document: Mapping[str, Any]) -> list[str]:
    data = document["data"]
    if document["analysis"] == "thresholds":
        return _threshold_lines(data)
    if document["analysis"] == "supervision":
        return [
            f"{name:<28} {_percent(bar['value']):>7}   chance {_percent(bar['chance'])}"
            for name, bar in data["metrics"].items()
        ]
    if document["analysis"] == "alpha":
        return _alpha_lines(data)
    if document["analysis"] == "lr":
        return _rate_lines(document)
    metric = document["metric"]
    lines = [f"{'no adaptation':<28} {_percent(data['baseline']):>7}   {metric}"]
    for name, curve in data["curves"].items():
        spread = curve["final_seed_std"]
        shown = "" if spread is None else f" ± {100 * spread:.2f}"
        kept = sum(row[0] for row in curve["coverage"]) / len(curve["coverage"])
        label = {"tau": f"tau_1 = {name}"}.get(document["analysis"], name)
        note = ", reads labels" if name == "oracle" else ""
        lines.append(f"{label:<28} {_percent(curve['final']):>7}{shown}   first kept {100 * kept:.0f} %{note}")
    return lines


def _threshold_lines(data: Mapping[str, Any]) -> list[str]:
    lines = []
    for share, value in data["band"].items():
        index = min(range(len(data["threshold"])), key=lambda place: abs(data["threshold"][place] - value))
        lines.append(
            f"keeping {100 * float(share):.0f} %: threshold {value:.3f}, accuracy among them "
            f"{_percent(data['accuracy'][index])}"
        )
    lines.append(f"keeping all: accuracy {_percent(data['accuracy'][0])}, {data['tied']} tied")
    return lines


def _rate_lines(document: Mapping[str, Any]) -> list[str]:
    data = document["data"]
    lines = [
        f"{'no adaptation':<28} {_percent(data['baseline']):>7}   {document['metric']}, reads labels; the rest does not"
    ]
    for rate in data["rates"]:
        label = f"lr = {rate['lr']:g}" + (" (would be used)" if rate["lr"] == data["default"] else "")
        broken = [reason for reason in rate["diverged"] if reason]
        if broken:
            lines.append(f"{label:<28} {'-':>7}   diverged with {len(broken)} of {len(rate['diverged'])} seeds")
            continue
        spread = "" if rate["final_seed_std"] is None else f" ± {100 * rate['final_seed_std']:.2f}"
        agree = "" if rate["agreement"] is None else f", seeds agree on {100 * rate['agreement']:.1f} %"
        lines.append(
            f"{label:<28} {_percent(rate['final']):>7}{spread}   last loss {_mean(rate['final_loss'])}"
            f", surest quarter kept {_percent(_mean_of(rate['confident_kept']))} %{agree}"
        )
    return lines


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: Sequence[float | None]) -> str:
    mean = _mean_of(values)
    return "-" if mean is None else f"{mean:.3g}"


def _alpha_lines(data: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, curve in data["metrics"].items():
        first, last = curve["values"][0], curve["values"][-1]
        same = "" if curve["depends_on_alpha"] else "   the same for every alpha"
        lines.append(f"{name:<28} {_percent(first):>7} at alpha 0, {_percent(last):>7} at alpha 1{same}")
    if data["held_out"] is not None:
        one, other = data["held_out"]["alphas"]
        value = _percent(data["held_out"]["value"])
        lines.append(f"{data['tuned_for']}, alpha tuned on the other half: {value} (alpha {one:g} and {other:g})")
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
