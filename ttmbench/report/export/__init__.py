"""Results documents in the formats of others: each says of every number how it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exporter:
    """A format that ``ttmbench export --to`` writes.

    Attributes:
        name: what ``--to`` calls it.
        target: ``"module:function"`` of ``(runs, target, source_url) -> (texts, left out)``, imported when it is asked
            for. ``target`` is what ``--output_path`` says, None for the terminal. ``texts`` maps a file, or None for
            the terminal, to what it holds; ``left out`` maps a task to the reason.
        takes_source_url: whether it has a place for the page where the results can be seen.
        takes_choices: whether its function also takes ``metrics``, ``columns`` and ``mark_best``.
    """

    name: str
    target: str
    takes_source_url: bool = False
    takes_choices: bool = False


EXPORTERS = (
    Exporter("lm-eval", "ttmbench.report.export.lm_eval:export_lm_eval_file"),
    Exporter("model-index", "ttmbench.report.export.hub:export_model_index", takes_source_url=True),
    Exporter("evaluation-results", "ttmbench.report.export.hub:export_evaluation_results", takes_source_url=True),
    Exporter("csv", "ttmbench.report.export.tables:export_csv"),
    Exporter("latex", "ttmbench.report.export.tables:export_latex", takes_choices=True),
)
"""Every format; one more is a module here and a row of this table."""
