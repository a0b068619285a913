"""``ttmbench analyze``: the paper's figures for any model and task, as JSON and as pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ttmbench._util.console import say
from ttmbench.cli.run import settings_of
from ttmbench.config import make_run_config
from ttmbench.errors import UsageError

DEFAULT_OUTPUT = "analysis"


def analyze(options: argparse.Namespace) -> int:
    """Analyses every task that the options name, writes a JSON document and a picture of each, and prints them."""
    settings = settings_of(options) | {"ttm": True}
    settings.setdefault("output_path", DEFAULT_OUTPUT)
    config = make_run_config(settings, "options")
    if config.output_path is not None and config.output_path.endswith(".json"):
        raise UsageError("analyze writes a JSON file and pictures of each task, so --output_path is a folder")
    from ttmbench.evaluator.analyze import analyze_tasks
    from ttmbench.ttm.analysis import ALPHA, ANALYSES

    if options.analysis not in (*ANALYSES, ALPHA):
        raise UsageError(f"unknown analysis '{options.analysis}'; known: {', '.join((*ANALYSES, ALPHA))}")
    if options.taus is not None and options.analysis != "tau":
        raise UsageError(f"--taus belongs to the analysis 'tau', not to '{options.analysis}'")
    started = datetime.now().astimezone()
    command = ["ttmbench", *sys.argv[1:]]
    for document, files in analyze_tasks(options.analysis, config, options.taus, started, command):
        say(f"{document['model_name']} on {document['task']}: {document['analysis']}")
        for line in _lines(document):
            say(f"  {line}")
        for file in files:
            say(f"  {file}")
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
