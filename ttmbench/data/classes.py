"""Names of classes and prompts of a classification task: from its file, or read from an installed package."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Group

METADATA = "zero_shot_metadata.py"
IN_FILE = "the task file"


@dataclass(frozen=True)
class Classes:
    """What a class is called, and in which prompts.

    Attributes:
        names: of the classes, in the order of labels.
        templates: with ``{}`` where the name goes.
        origin_of_names: where they come from.
        origin_of_templates: the same.
    """

    names: list[str]
    templates: list[str]
    origin_of_names: str
    origin_of_templates: str


def load_classes(spec: TaskSpec) -> Classes:
    """The classes and prompts of a task.

    Args:
        spec: the task, of kind ``classification``.

    Returns:
        Both lists.

    Raises:
        UsageError: they are those of a package that is not installed, or has no such list.
        DataError: there are more or fewer classes than the task says.
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
    """The class of each image.

    Args:
        spec: the task.
        classes: of it.
        groups: an image each, with its label as the only caption: the number of a class, or its name.

    Returns:
        int [images].

    Raises:
        DataError: a label is neither, or a name that several classes have; the image is named.
    """
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(classes.names):
        numbers.setdefault(name, []).append(number)
    found = []
    for group in groups:
        label = group.captions[0]
        if label.isascii() and label.isdecimal() and int(label) < len(classes.names):
            found.append(int(label))
            continue
        places = numbers.get(label, [])
        if len(places) != 1:
            what = (
                "the name of several classes" if places else f"neither a number below {len(classes.names)} nor a name"
            )
            raise DataError(f"task '{spec.task}': the label {label!r:.80} of {group.group_id} is {what}")
        found.append(places[0])
    return np.array(found, dtype=np.int64)


def _resolved(spec: TaskSpec, key: str, given: str | list[str]) -> tuple[list[str], str]:
    if isinstance(given, list):
        return list(given), IN_FILE
    package, _, name = given.partition(":")
    where = f"task '{spec.task}': classes.{key}: {given}"
    module = _module(package, where)
    values = getattr(module, name, None)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        known = ", ".join(sorted(one for one in vars(module) if one.isupper()))
        raise UsageError(f"{where} is not there; the installed package has {known}")
    with foreign_errors(where):
        # Prompts are functions there: of a name, a sentence.
        texts = [str(one("{}")) if callable(one) else str(one) for one in values]
    return texts, f"{given} of {package}_torch {version('open_clip_torch')}"


def _module(package: str, where: str) -> Any:
    """The package's lists, without its models: importing these would load torch."""
    found = importlib.util.find_spec(package)
    path = Path(found.origin).parent / METADATA if found is not None and found.origin else None
    if path is None or not path.is_file():
        raise UsageError(f"{where} is read from the package {package}; pip install open_clip_torch")
    spec = importlib.util.spec_from_file_location(f"_ttmbench_{package}_metadata", path)
    assert spec is not None and spec.loader is not None, "a Python file can be loaded"
    module = importlib.util.module_from_spec(spec)
    with foreign_errors(where):
        spec.loader.exec_module(module)
    return module
