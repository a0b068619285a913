"""The JSON of mteb, a file a task: ``<model>/<revision>/<Task>.json``, in fractions.

Its accuracy is a fraction of groups, in which an index decides between equal scores: of a group with one image the
correct caption is the first, so ties count as correct there. Tasks that mteb scores on other data or by another rule
are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ttmbench._util.files import to_json
from ttmbench.errors import UsageError
from ttmbench.report.export.hub import nothing_to_export
from ttmbench.report.export.lm_eval import sanitised
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import RAW, key_of
from ttmbench.results.numbers import DocumentFile

_SUGARCREPE = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
_TASKS = {
    "Winoground": ("winoground",),
    "SugarCrepe": tuple(f"sugarcrepe_{part}" for part in _SUGARCREPE),
    "AROCocoOrder": ("aro_coco_order",),
    "AROFlickrOrder": ("aro_flickr30k_order",),
}
"""Task of mteb -> those of ttmbench with the same groups."""
_WHY_NOT = {
    **dict.fromkeys(("aro_vg_relation", "aro_vg_attribution"), "mteb scores whole images, this task the parts of them"),
    **dict.fromkeys(
        ("flickr30k_retrieval", "coco_retrieval"),
        "mteb's main number is ndcg@10 with other captions, which recalls do not give",
    ),
    "imagecode": "mteb's copy has images of 256 x 256 pixels, on which numbers are far lower",
    "imagenet": "mteb has one prompt a class, this task several",
}
_NO_REVISION = ("no_revision_available", "revision_not_applicable")  # mteb's words, of a model and of data


def export_mteb(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The `Exporter` ``mteb``: a file a task below a directory; the terminal or a file takes one task."""
    contents: dict[Path, str] = {}
    skipped: dict[str, str] = {}
    for run in runs:
        for name, content in _contents(run.document, skipped).items():
            revision = run.document.config.get("model_args", {}).get("revision")
            folder = Path(sanitised(run.model)) / sanitised(str(revision or _NO_REVISION[0]))
            contents[folder / f"{name}.json"] = to_json(content)
    if not contents:
        raise nothing_to_export(skipped)
    if target is None or target.suffix == ".json":
        if len(contents) > 1:
            raise UsageError(
                f"a file of mteb is one task of one model, and there are {len(contents)}; name a directory"
            )
        return {target: next(iter(contents.values()))}, skipped
    return {target / name: text for name, text in contents.items()}, skipped


def _contents(document: ResultsDocument, skipped: dict[str, str]) -> dict[str, dict[str, object]]:
    """Task of mteb -> its file; tasks that have none go to ``skipped`` with the reason."""
    found: dict[str, dict[str, object]] = {}
    done: set[str] = set()
    for name, tasks in _TASKS.items():
        here = [task for task in tasks if task in document.results]
        done |= set(here)
        if not here:
            continue
        absent = len(tasks) - len(here)
        why = f"mteb's {name} is all {len(tasks)} parts, of which {absent} are missing" if absent else None
        scores = None if why else _scores(document, tasks)
        if isinstance(scores, Mapping):
            found[name] = _file(document, name, tasks, scores)
        else:
            skipped[name if absent else here[0]] = why or str(scores)
    for task in document.results:
        if task not in done:
            skipped[task] = _WHY_NOT.get(task, "mteb has no such task")
    return found


def _scores(document: ResultsDocument, tasks: Sequence[str]) -> dict[str, float] | str:
    """Mteb's scores of all groups of some tasks, or why there are none."""
    counts: dict[str, int] = {}
    total = 0
    for task in tasks:
        numbers, ties, extent = document.results[task], document.ties[task], document.extent(task)
        if extent.limited or extent.groups != extent.of:
            return f"{extent.words} groups were scored"
        size = document.n_samples[task].effective
        one_image = document.datasets[task].shape[0] == 1
        wanted = {"text_acc": "text_score"} if one_image else _SQUARE
        for theirs, ours in wanted.items():
            value, tied = numbers.get(key_of(ours, RAW)), ties.get(key_of(ours, RAW))
            if value is None:
                return f"it has no {ours} of scores"
            if tied is None:
                return "its ties are not known"
            if tied and not one_image:
                return f"{tied:g} groups have ties, which mteb decides by position"
            counts[theirs] = counts.get(theirs, 0) + round(value * size) + round(tied)
        total += size
    return {name: count / total for name, count in counts.items()}


_SQUARE = {"text_acc": "text_score", "image_acc": "image_score", "accuracy": "group_score"}


def _file(document: ResultsDocument, name: str, tasks: Sequence[str], scores: Mapping[str, float]) -> dict[str, object]:
    revisions = {document.datasets[task].revision for task in tasks}
    seconds = sum(sum(document.timing.get(task, {}).values()) for task in tasks)
    main = scores.get("accuracy", scores["text_acc"])
    return {
        "dataset_revision": (revisions.pop() if len(revisions) == 1 else None) or _NO_REVISION[1],
        "task_name": name,
        "mteb_version": None,  # it was not mteb that computed them
        "scores": {"test": [{**scores, "main_score": main, "hf_subset": "default", "languages": ["eng-Latn"]}]},
        "evaluation_time": seconds,
        "kg_co2_emissions": None,
        "date": datetime.fromtimestamp(document.date, UTC).timestamp(),
    }
