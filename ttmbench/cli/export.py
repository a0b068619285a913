"""``ttmbench export``: results in the formats of lm-evaluation-harness, the hub, spreadsheets and papers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from ttmbench._util.console import complain, say
from ttmbench._util.files import safe_name, to_json, write_atomically
from ttmbench.errors import UsageError
from ttmbench.report.export.numbers import Run, read_runs

FORMATS = ("lm-eval", "model-index", "evaluation-results", "csv", "latex")


def export(options: argparse.Namespace) -> int:
    """Reads the runs, writes them in the format asked for, and says what was left out."""
    if options.to not in FORMATS:
        raise UsageError(f"--to {options.to}: the formats are {', '.join(FORMATS)}")
    if options.source_url and options.to not in ("model-index", "evaluation-results"):
        raise UsageError(f"--source_url: {options.to} has no place for it; model-index and evaluation-results do")
    runs, skipped = read_runs([Path(name) for name in options.runs])
    for found in skipped:
        complain(f"left out: {found.path}: {found.skipped}")
    for run in runs:
        if run.document["status"] != "done":
            told = f"{run.path}: status {run.document['status']}: only finished tasks are there"
            complain(told)
    target = Path(options.output_path) if options.output_path else None
    texts, left_out = _texts(options.to, runs, target, options.source_url)
    for task, why in left_out.items():
        complain(f"left out: {task}: {why}")
    for path, text in texts.items():
        if path is None:
            print(text, end="")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--output_path {path} cannot be written to: {error.strerror or error}") from None
        write_atomically(path, lambda place, text=text: place.write_text(text, encoding="utf-8"))  # type: ignore[misc]
        say(str(path))
    return 0


def _texts(
    to: str, runs: Sequence[Run], target: Path | None, source_url: str | None
) -> tuple[Mapping[Path | None, str], Mapping[str, str]]:
    """File, or None for the terminal -> what it holds; and what was left out: task -> why."""
    if to == "csv":
        from ttmbench.report.export.tables import to_csv

        return {target: to_csv(runs)}, {}
    if to == "latex":
        from ttmbench.report.export.tables import to_latex

        return {target: to_latex(runs)}, {}
    if to == "lm-eval":
        return {_lm_eval_file(runs, target): _lm_eval_text(runs)}, {}
    from ttmbench.report.export import hub

    if to == "model-index":
        data, left_out = hub.model_card_data(runs, source_url)
        if target is not None and target.suffix == ".md":
            return {target: hub.write_card(target, data)}, left_out
        return {target: data.to_yaml() + "\n"}, left_out
    files, left_out = hub.evaluation_results(runs, source_url)
    if target is None or target.suffix in (".yaml", ".yml"):
        return {target: hub.to_yaml([entry for entries in files.values() for entry in entries])}, left_out
    return {target / f"{safe_name(name)}.yaml": hub.to_yaml(entries) for name, entries in files.items()}, left_out


def _lm_eval_text(runs: Sequence[Run]) -> str:
    from ttmbench.report.export.lm_eval import lm_eval_document

    if len(runs) > 1:
        raise UsageError("a file of lm-evaluation-harness is one run: export each results document alone")
    return to_json(lm_eval_document(runs[0]))


def _lm_eval_file(runs: Sequence[Run], target: Path | None) -> Path | None:
    from ttmbench.report.export.lm_eval import file_name

    return target if target is None or target.suffix == ".json" else target / file_name(runs[0])
