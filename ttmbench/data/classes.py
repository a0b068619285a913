"""Names of classes and prompts of a classification task, from its file or an installed package."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np

from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Group

METADATA = "zero_shot_metadata.py"
IN_FILE = "the task file"


@dataclass(frozen=True)
class Classes:
    """Names of classes in the order of labels, prompts with ``{}`` for the name, and where both come from."""

    names: list[str]
    templates: list[str]
    origin_of_names: str
    origin_of_templates: str


def load_classes(spec: TaskSpec) -> Classes:
    """The classes and prompts of a task.

    DataError for another number of classes than the task states; UsageError if the task does not classify, or a
    package that it names is not installed or has no such list.
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
    """The texts of a task or of a package that it names, and where they come from."""
    if isinstance(stated, list):
        return list(stated), IN_FILE
    package, _, name = stated.partition(":")
    where = f"task '{spec.task}': classes.{key}: {stated}"
    module = _module(package, where)
    values = getattr(module, name, None)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        known = ", ".join(sorted(name for name in vars(module) if name.isupper()))
        raise UsageError(f"{where} is not there; the installed package has {known}")
    with foreign_errors(where):
        # Prompts are functions there: of a name, a sentence.
        texts = [str(value("{}")) if callable(value) else str(value) for value in values]
    return texts, f"{stated} of {package}_torch {version('open_clip_torch')}"


def _module(package: str, where: str) -> ModuleType:
    """The package's lists, without its models: importing these would load torch."""
    installed = importlib.util.find_spec(package)
    path = Path(installed.origin).parent / METADATA if installed is not None and installed.origin else None
    if path is None or not path.is_file():
        raise UsageError(f"{where} is read from the package {package}; pip install open_clip_torch")
    spec = importlib.util.spec_from_file_location(f"_ttmbench_{package}_metadata", path)
    assert spec is not None and spec.loader is not None, "a Python file can be loaded"
    module = importlib.util.module_from_spec(spec)
    with foreign_errors(where):
        spec.loader.exec_module(module)
    return module
