"""Names of classes and prompts of a classification task, from its file or an installed package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Group


@dataclass(frozen=True)
class Classes:
    """Names of classes in the order of labels, prompts with ``{}`` for the name, and where both come from."""

    names: list[str]
    templates: list[str]
    origin_of_names: str
    origin_of_templates: str


def load_classes(spec: TaskSpec) -> Classes:
    """The classes and prompts of a task.

    DataError for another number of classes than the task states; UsageError if the task does not classify, or the
    package has no list that it names.
    """
    classes = spec.classes
    if classes is None:
        raise UsageError(f"task '{spec.task}' is of kind {spec.kind} and has no classes")
    names, of_names = _resolved(spec, "names", classes.names)
    templates, of_templates = _resolved(spec, "templates", classes.templates)
    if len(names) != classes.n_classes:
        raise DataError(f"task '{spec.task}': {of_names} has {len(names)} names, the task says {classes.n_classes}")
    return Classes(names, templates, of_names, of_templates)


def labels_of(spec: TaskSpec, classes: Classes, groups: Sequence[Group]) -> np.ndarray:
    """The class of each image, int [images], from the caption of its group: a class's number or name.

    DataError for any other label, or a name that several classes have; the image is named.
    """
    count = len(classes.names)
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(classes.names):
        numbers.setdefault(name, []).append(number)
    labels = []
    for group in groups:
        label = group.captions[0]
        is_number = label.isascii() and label.isdecimal() and int(label) < count
        meant = [int(label)] if is_number else numbers.get(label, [])
        if len(meant) != 1:
            what = "the name of several classes" if meant else f"neither a number below {count} nor a name"
            raise DataError(f"task '{spec.task}': the label {label!r:.80} of {group.group_id} is {what}")
        labels += meant
    return np.array(labels, dtype=np.int64)


def _resolved(spec: TaskSpec, key: str, stated: str | list[str]) -> tuple[list[str], str]:
    """The texts of a task or of open_clip's list that it names, and where they come from."""
    if isinstance(stated, list):
        return list(stated), "the task file"
    from open_clip import zero_shot_metadata as lists

    values = getattr(lists, stated.partition(":")[2], None)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        known = ", ".join(sorted(name for name in vars(lists) if name.isupper()))
        raise UsageError(f"task '{spec.task}': classes.{key}: {stated} is not there; the installed package has {known}")
    # Prompts are functions there: of a name, a sentence.
    texts = [str(value("{}")) if callable(value) else str(value) for value in values]
    return texts, f"{stated} of open_clip_torch {version('open_clip_torch')}"
