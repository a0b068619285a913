"""``ttmbench analyze``: the paper's analyses for any model and task, as JSON and figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

from ttmbench._util.console import echo
from ttmbench.cli.parser import MACHINE, WHAT, add_run_options
from ttmbench.cli.run import settings_of
from ttmbench.config import make_run_config
from ttmbench.errors import UsageError
from ttmbench.report.terminal import NOTHING, TableColumn, interval_text, percent, points, print_table, spread_text
from ttmbench.types import Record

KNOWN = ("thresholds", "schedules", "supervision", "oracle", "tau", "lr", "alpha", "transfer", "methods", "calibration")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench analyze``."""
    parser.add_argument("analysis", choices=KNOWN, metavar="ANALYSIS", help=f"One of {', '.join(KNOWN)}")
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
    for option, analysis in (("taus", "tau"), ("lrs", "lr")):
        if getattr(options, option) is not None and options.analysis != analysis:
            raise UsageError(f"--{option} is for the analysis '{analysis}', got '{options.analysis}'")
    settings = {"output_path": "analysis", **settings_of(options)}
    takes = {"methods": "needs", "calibration": "may have"}.get(options.analysis)
    if (settings.get("methods") and takes is None) or (takes == "needs" and not settings.get("methods")):
        raise UsageError("'analyze methods' needs --methods A,B, calibration may have it, and other analyses take none")
    settings |= {} if takes else {"methods": ["ttm"]}
    config = make_run_config(settings, "options")
    if config.output_path is not None and config.output_path.endswith(".json"):
        raise UsageError(f"--output_path must be a directory for analyze, got {config.output_path}")
    from ttmbench.evaluator.evaluate import resolve

    resolve(config)  # reports a wrong name before torch is imported, which takes seconds
    from ttmbench.evaluator.analyses import documents
    from ttmbench.report.charts import write_analysis

    grid = options.taus if options.taus is not None else options.lrs
    for document in documents(options.analysis, config, ["ttmbench", *sys.argv[1:]], grid):
        task = document.get("task") or f"{len(document['tasks'])} tasks"
        echo(f"{document['model_name']} on {task}: {document['analysis']}")
        heads, by, rows, above = document["columns"], document.get("by"), list[list[str]](), None
        for row in document["rows"]:  # those with one value of ``by`` follow each other, below it
            if by and row[by] != above:
                above = row[by]
                rows.append([f"{by.replace('_', ' ')} {above}"])
            rows.append([_cell(key, row) for key in heads])
        kinds = ("key", *["number"] * (len(heads) - 1))
        print_table(list(map(TableColumn, heads.values(), kinds)), rows, caption="\n".join(document.get("notes", ())))
        for file in write_analysis(Path(config.output_path or "."), document):
            echo(f"  {file}")
    return 0


_FORMS = {"band": ".3f", "final_loss": ".3g", "p_holm": ".2g", "passes": ".1f", "seconds": ".1f"}
_FORMS |= {"first_selected": ".0%", "confident_kept": ".2%", "agreement": ".1%"}


def _cell(key: str, row: Record) -> str:
    """A value of a row as a table shows it; of a list its mean, if all seeds have a value; fractions in percent."""
    value = row.get(key)
    if key == "ci":
        return interval_text(value, signed=True)
    if isinstance(value, list):
        value = None if None in value else fmean(value)
    if value is None or isinstance(value, str):
        return value or NOTHING
    if key == "gain":
        return points(value) + (" *" if row.get("differs") else "")
    if key in _FORMS:
        return format(value, _FORMS[key])
    return percent(value) + spread_text(row.get("seed_std") if key == "value" else None)
