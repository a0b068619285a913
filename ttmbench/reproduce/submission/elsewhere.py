"""Adapted models on other tasks (``ttm_also``): computed again from the scores that a run keeps of them."""

from __future__ import annotations

from ttmbench.data.catalog import find_task
from ttmbench.errors import TtmbenchError
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.tasks import OfTask, metrics_of
from ttmbench.results.labels import RAW, TTM
from ttmbench.results.scores_file import read_scores
from ttmbench.results.summary import summarise


def check_elsewhere(one: OfTask, findings: Findings) -> None:
    """Checks what a document says of other tasks; these numbers rank nowhere.

    Args:
        one: the task that was adapted to.
        findings: takes what differs.
    """
    task = one.spec.task
    for other, record in one.document.get("ttm_also", {}).get(task, {}).items():
        place = f"ttm_also.{task}.{other}"
        if other not in one.registry.task_files:
            findings.refuse(place, "is a task that this package does not have")
            continue
        spec = find_task(one.registry, other).spec
        findings.same(f"{place}.version", record["version"], spec.version, "this package has")
        findings.same(f"{place}.seeds", record["seeds"], one.config.run_seeds, "config.seeds says")
        file = one.file("also_scores", other)
        if spec.kind != "groups" or file is None:
            findings.leave_open(place, "there is no file of its scores (--save_scores)")
            continue
        try:
            scores = read_scores(file, spec.shape)
            metrics = metrics_of(one.registry, spec)
            summary = summarise(scores.scores, metrics, *one.resampling, scores.clusters, scores.subsets)
        except TtmbenchError as error:
            findings.refuse(place, str(error))
            continue
        if not {RAW, TTM} <= set(scores.scores):
            findings.refuse(place, f"its file of scores lacks filter {RAW} or {TTM}")
            continue
        for key in ("results", "ci", "chance", "ties"):
            findings.same(f"{place}.{key}", record[key], getattr(summary, key), "its scores give")
