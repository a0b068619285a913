"""Results documents in other formats."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exporter:
    """A format that ``ttmbench export --to`` writes.

    Attributes:
        name: the value of ``--to``.
        target: ``"module:function"`` of ``(runs, target, source_url) -> (texts, skipped)``. ``target`` is
            ``--output_path``, None for the terminal; ``texts`` maps a file, or None for the terminal, to its content;
            ``skipped`` maps a task to the reason.
        takes_source_url: whether the format has a web page with the results.
        takes_choices: whether the function also takes ``metrics``, ``columns`` and ``mark_best``.
    """

    name: str
    target: str
    takes_source_url: bool = False
    takes_choices: bool = False


EXPORTERS = (
    Exporter("lm-eval", "ttmbench.report.export.lm_eval:export_lm_eval_file"),
    Exporter("model-index", "ttmbench.report.export.hub:export_model_index", takes_source_url=True),
    Exporter("evaluation-results", "ttmbench.report.export.hub:export_evaluation_results", takes_source_url=True),
    Exporter("mteb", "ttmbench.report.export.mteb:export_mteb"),
    Exporter("csv", "ttmbench.report.export.tables:export_csv"),
    Exporter("latex", "ttmbench.report.export.tables:export_latex", takes_choices=True),
)
"""Every format; a new one is a module here and a row of this table."""
