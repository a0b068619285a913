"""Is the data what the task file says? One clear error names the task, the group and both counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ttmbench._util.console import is_text
from ttmbench._util.limits import limit, raised_by
from ttmbench._util.progress import progress_iter
from ttmbench.data.task_file import Defect, TaskSpec
from ttmbench.errors import DataError
from ttmbench.types import Group, ImageRef


def check_count(spec: TaskSpec, found: int, what: str) -> None:
    """Raises DataError if the task file promises another number of groups; it tells why, where that is known."""
    if spec.group.n_groups is not None and found != spec.group.n_groups:
        why = spec.group.wrong_sizes.get(found)
        raise DataError(
            f"{what} has {found} groups, but task '{spec.task}' (version {spec.version}) has {spec.group.n_groups}"
            + (f": {why}" if why else "")
        )


def check_groups(spec: TaskSpec, groups: Sequence[Group], limit: int | None = None, left_out: int = 0) -> None:
    """Checks number, shape, captions and ids of a task's groups.

    Args:
        spec: the task.
        groups: as its source gave them.
        limit: the source was asked for no more than this.
        left_out: how many groups the source knows and does not give.

    Raises:
        DataError: the first thing that is wrong.
    """
    task = f"task '{spec.task}'"
    whole = limit is None or (spec.group.n_groups is not None and limit >= spec.group.n_groups)
    if whole:
        check_count(spec, len(groups) + left_out, f"the data of {task}")
        for name, mean in spec.means.items():
            problem = mean.problem(groups) if groups and not left_out else None
            if problem is not None:
                raise DataError(f"{task}: means.{name} {problem}")
    if not groups:
        raise DataError(f"{task}: the source gave no group")
    for group in groups:
        _check_group(spec, group)
    captions = sum(len(group.captions) for group in groups)
    if whole and not left_out and spec.group.n_captions not in (None, captions):
        stated = f"the task (version {spec.version}) has {spec.group.n_captions}"
        raise DataError(f"the data of {task} has {captions} captions, but {stated}")
    doubled = [group_id for group_id, count in Counter(group.group_id for group in groups).items() if count > 1]
    if doubled:
        raise DataError(f"{task}: group id {doubled[0]} is given to several groups")


def _check_group(spec: TaskSpec, group: Group) -> None:
    """Ids, captions and names are texts that a file can hold, of bearable length; the shape is right."""
    most = limit("caption_characters")
    for what, text in (
        ("the id", group.group_id),
        *(("a caption", caption) for caption in group.captions),
        *(("the name of an image", image.name) for image in group.images),
    ):
        where = f"task '{spec.task}': {what} of group {group.group_id!r:.80}"
        if not isinstance(text, str):
            raise DataError(f"{where} is {type(text).__name__}, not a text")
        if len(text) > most:
            raise DataError(f"{where} has {len(text)} characters, more than {most}; {raised_by('caption_characters')}")
        if "\0" in text or not is_text(text):
            raise DataError(f"{where} holds a null character or half a surrogate pair, which no file can hold")
    images, captions = shape = (len(group.images), len(group.captions))
    where = f"task '{spec.task}': group {group.group_id}"
    if spec.kind == "groups" and shape != spec.group.shape:
        raise DataError(f"{where} is {images}x{captions}, the task file says {spec.shape}")
    if spec.kind == "retrieval" and (images != 1 or not captions):
        raise DataError(f"{where} has {images} images and {captions} captions; retrieval needs one image and captions")
    if spec.kind == "classification" and shape != (1, 1):
        raise DataError(f"{where} has {images} images and {captions} labels; classification needs one of each")
    empty = next((position for position, caption in enumerate(group.captions) if not caption.strip()), None)
    if empty is not None:
        raise DataError(f"task '{spec.task}': caption {empty} of group {group.group_id} is empty")


@dataclass
class DataReport:
    """What a look at every group and image found.

    Attributes:
        images: number of distinct images, by name.
        problems: what makes numbers wrong or impossible; each names its group.
        notes: what a reader should know.
    """

    images: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_KNOWN: dict[Defect, str] = {
    "equal_captions": "have a caption twice",
    "equal_images": "have an image twice",
    "equal_groups": "are the same as an earlier one",
}


def audit_groups(spec: TaskSpec, groups: Sequence[Group], digest_of: Callable[[ImageRef, str], str]) -> DataReport:
    """Decodes every image and looks for what can only tie or counts twice.

    Args:
        spec: the task.
        groups: as its source gave them, of the right number and shape.
        digest_of: (image, group id) -> digest of its decoded content.
    """
    report, known = DataReport(), Counter[Defect]()
    digests: dict[str, str | None] = {}  # None for an image that cannot be decoded
    seen: dict[tuple[tuple[str | None, ...], tuple[str, ...]], str] = {}
    for group in progress_iter(groups, "checking", "groups", total=len(groups)):
        for image in group.images:
            if image.name not in digests:
                try:
                    digests[image.name] = digest_of(image, group.group_id)
                except DataError as error:
                    digests[image.name] = None
                    report.problems.append(str(error))
        content, name = tuple(digests[image.name] for image in group.images), f"group {group.group_id}"
        first = seen.setdefault((content, group.captions), group.group_id)
        defects: dict[Defect, str] = {}
        if spec.kind == "groups" and _repeated(group.captions):
            defects["equal_captions"] = f"{name} has the same caption twice, so it can only tie"
        if _repeated(content):
            defects["equal_images"] = f"{name} has the same image twice, so it can only tie"
        if spec.kind == "groups" and first != group.group_id and None not in content:
            defects["equal_groups"] = f"groups {first} and {group.group_id} are the same"
        known.update(defect for defect in defects if defect in spec.group.known_defects)
        report.problems += [text for defect, text in defects.items() if defect not in spec.group.known_defects]
    report.images = len(digests)
    repeated = _repeated(digests.values())
    report.notes += [f"{repeated} images have the content of another one"] if repeated else []
    if spec.is_global or spec.kind == "retrieval":
        repeated = _repeated([caption for group in groups for caption in group.captions])
        report.notes += [f"{repeated} captions repeat an earlier one and can only tie"] if repeated else []
    report.notes += [f"{count} groups {_KNOWN[defect]}, as is known" for defect, count in known.items()]
    return report


def _repeated(values: Iterable[str | None]) -> int:
    """How many of the values, None apart, are equal to an earlier one."""
    present = [value for value in values if value is not None]
    return len(present) - len(set(present))
