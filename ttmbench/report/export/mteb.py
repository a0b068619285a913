"""The JSON of mteb, a file a task: ``<model>/<revision>/<Task>.json``, in fractions.

Its accuracy is a fraction of groups, in which an index decides between equal scores: of a group with one image the
correct caption is the first, so ties count as correct there. Tasks that mteb scores on other data or by another rule
are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
_SQUARE = {"text_acc": "text_score", "image_acc": "image_score", "accuracy": "group_score"}


def export_mteb(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``mteb``: a file a task below a directory; the terminal or a file takes one task."""
    contents: dict[Path, str] = {}
    skipped: dict[str, str] = {}
    for run in runs:
        document = run.document
        folder = Path(sanitised(run.model)) / sanitised(
            str(document.config.get("model_args", {}).get("revision") or _NO_REVISION[0])
        )
        theirs = {task: name for name, tasks in _TASKS.items() for task in tasks}
        absent = (task for task in document.results if task not in theirs)
        skipped |= {task: _WHY_NOT.get(task, "mteb has no such task") for task in absent}
        for name in dict.fromkeys(theirs[task] for task in document.results if task in theirs):
            try:
                contents[folder / f"{name}.json"] = to_json(_file(document, name))
            except UsageError as error:
                skipped[name if len(_TASKS[name]) > 1 else _TASKS[name][0]] = str(error)
    if not contents:
        raise nothing_to_export(skipped)
    if target is not None and target.suffix != ".json":
        return {target / name: text for name, text in contents.items()}, skipped
    if len(contents) > 1:
        raise UsageError(f"a file of mteb is one task of one model, and there are {len(contents)}; name a directory")
    return {target: next(iter(contents.values()))}, skipped


def _file(document: ResultsDocument, name: str) -> dict[str, object]:
    """A file of mteb; UsageError with why there is none."""
    tasks, counts, total = _TASKS[name], Counter[str](), 0
    if absent := sum(task not in document.results for task in tasks):
        raise UsageError(f"mteb's {name} is all {len(tasks)} parts, of which {absent} are missing")
    for task in tasks:
        numbers, ties, extent = document.results[task], document.ties[task], document.extent(task)
        if extent.limited or extent.groups != extent.of:
            raise UsageError(f"{extent.words} groups were scored")
        size, one_image = document.n_samples[task].effective, document.datasets[task].shape[0] == 1
        for theirs, ours in ({"text_acc": "text_score"} if one_image else _SQUARE).items():
            value, tied = numbers.get(key_of(ours, RAW)), ties.get(key_of(ours, RAW))
            if value is None:
                raise UsageError(f"it has no {ours} of scores")
            if tied is None:
                raise UsageError("its ties are not known")
            if tied and not one_image:
                raise UsageError(f"{tied:g} groups have ties, which mteb decides by position")
            counts[theirs] += round(value * size) + round(tied)
        total += size
    scores = {name: count / total for name, count in counts.items()}
    main = scores.get("accuracy", scores["text_acc"])
    revisions = {document.datasets[task].revision for task in tasks}
    return {
        "dataset_revision": (revisions.pop() if len(revisions) == 1 else None) or _NO_REVISION[1],
        "task_name": name,
        "mteb_version": None,  # it was not mteb that computed them
        "scores": {"test": [{**scores, "main_score": main, "hf_subset": "default", "languages": ["eng-Latn"]}]},
        "evaluation_time": sum(sum(document.timing.get(task, {}).values()) for task in tasks),
        "kg_co2_emissions": None,
        "date": datetime.fromtimestamp(document.date, UTC).timestamp(),
    }
