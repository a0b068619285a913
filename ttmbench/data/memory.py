"""Tasks in memory, made of a program's own images and captions."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from pydantic import ValidationError

from ttmbench._annotations import ImageLike
from ttmbench._util.images import as_rgb, open_image, stacked
from ttmbench._util.third_party import describe
from ttmbench.data.loader import check_groups
from ttmbench.data.rows import Row
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Group, ImageRef

if TYPE_CHECKING:
    from PIL.Image import Image

KIND = "memory"
USUAL_METRICS = ("text_score", "image_score", "group_score", "group_match", "individual_match")


class TaskFields(TypedDict, total=False):
    """Further fields of a task in memory, described at `Task.from_groups`."""

    metrics: Sequence[str] | None
    matching: Literal["group", "global"]
    pooling: Literal["after_normalization", "before_normalization"]
    true_captions: int
    version: int
    license: str
    description: str


@dataclass(frozen=True, eq=False, repr=False)
class Task(TaskFile):
    """A task whose data are in memory; made by `from_groups` or `from_dataset`, given to ``simple_evaluate``.

    Images are not copied and are decoded when a run needs them: changing them changes the data.
    """

    groups: tuple[Group, ...] = ()

    @classmethod
    def from_groups(
        cls,
        images: Sequence[Sequence[ImageLike | Sequence[ImageLike]]],
        captions: Sequence[Sequence[str]],
        *,
        name: str,
        ids: Sequence[str | int] | None = None,
        tags: Mapping[str, Sequence[object]] = MappingProxyType({}),
        **fields: Unpack[TaskFields],
    ) -> Task:
        """A task of images and captions, group by group.

        Args:
            images: `[groups][m]`; images of Pillow, uint8 arrays [height, width, 3], or paths of files. One object
                given several times is one image. A list of images is a video of these frames; then every item is one.
            captions: `[groups][k]`, m <= k; caption i is true for image i.
            name: of the task, in results and names of files.
            ids: of the groups, all different; by default their numbers from 0.
            tags: to break numbers down by: tag -> a value for every group.
            fields: ``metrics``: names; by default those of the built-in tasks that are defined for the shape.
                ``matching`` of TTM: inside groups ("group"), or over all images and captions at once ("global").
                ``true_captions``: t, how many captions are true for each image: the first t of the first image, and
                so on. ``pooling`` of the frames of videos, as in a task file. ``version``: raise it whenever numbers
                can change. ``license`` of the data; ``description``.

        Raises:
            DataError: groups of several shapes, an empty caption, a duplicate id, or a value that is not an image.
            UsageError: an invalid name or shape.

        >>> black, white = (np.full((8, 8, 3), grey, dtype=np.uint8) for grey in (0, 255))
        >>> Task.from_groups([[black, white]], [["a dark square", "a light square"]], name="squares")
        Task('squares', 1 group of 2x2)
        """
        where = f"task '{name}'"
        if not len(images) == len(captions) == len(ids if ids is not None else images):
            counts = f"{len(images)} groups of images and {len(captions)} of captions"
            raise DataError(f"{where}: there are {counts}" + ("" if ids is None else f", and {len(ids)} ids"))
        labels = [str(label) for label in (range(len(images)) if ids is None else ids)]
        if doubled := [label for label, count in Counter(labels).items() if count > 1]:
            raise DataError(f"{where}: group id {doubled[0]} is given to several groups")
        if not isinstance(tags, Mapping):
            raise DataError(
                f"{where}: tags must be a mapping, tag -> a value for each group; got {type(tags).__name__}"
            )
        for tag, values in tags.items():
            if isinstance(values, str) or len(values) != len(labels):
                raise DataError(f"{where}: tag '{tag}' should have one value for each of {len(labels)} groups")
        references, groups = _Images(where), []
        for index, (label, row, texts) in enumerate(zip(labels, images, captions, strict=True)):
            for what, items in (("images", row), ("captions", texts)):
                if (
                    isinstance(items, str | os.PathLike)
                    or not hasattr(items, "__len__")
                    or getattr(items, "ndim", 9) == 0
                ):
                    kind = type(items).__name__
                    raise DataError(f"{where}: the {what} of group {label} are a {kind}; expected a list, also of one")
            shown = tuple(references.of(image, f"{label}/{at}", label) for at, image in enumerate(row))
            group_tags = {tag: str(values[index]) for tag, values in tags.items()}
            groups.append(Group(label, shown, tuple(texts), group_tags))
        return cls._of(name, groups, fields, _frames_of_each(where, images, labels))

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        images: str | Sequence[str],
        captions: str | Sequence[str],
        name: str,
        id: str | None = None,
        tags: Sequence[str] = (),
        **fields: Unpack[TaskFields],
    ) -> Task:
        """A task of the rows of a ``datasets.Dataset``, or of any sequence of mappings; one row is one group.

        Args:
            dataset: the rows. Images of a ``datasets.Dataset`` are decoded one by one when they are needed.
            images: columns of the images, in order; or one column, which holds an image or a list of them.
            captions: columns of the captions, the i-th true for the i-th image; or one column that holds a list.
            name: of the task.
            id: column of the groups' ids; by default they are the numbers of the rows.
            tags: columns to break numbers down by.
            fields: as for `from_groups`.

        Raises:
            DataError: a column is missing, or a row is not like the others.
            UsageError: an invalid name or shape.
        """
        where = f"task '{name}'"
        if len(dataset) == 0:
            raise DataError(f"{where}: the dataset has no row")
        library = sys.modules.get("datasets")  # which is not imported for this
        lazy = library is not None and isinstance(dataset, library.Dataset)
        columns = [images] if isinstance(images, str) else list(images)
        if lazy and (absent := [column for column in columns if column not in dataset.column_names]):
            raise DataError(f"{where}: no column '{absent[0]}'; it has {', '.join(dataset.column_names)}")
        texts = dataset.remove_columns(columns) if lazy else dataset
        views = {column: dataset.select_columns([column]) for column in columns} if lazy else {}  # decode nothing else
        count = len(_items(Row("0", dataset[0], 0, where), images))

        def opened(index: int, at: int) -> ImageRef:
            column, position = (columns[0], at) if isinstance(images, str) else (columns[at], 0)

            def open_one() -> Image:
                row = Row(str(index), views[column][index], index, where)
                found = _items(row, column if isinstance(images, str) else [column])
                if isinstance(images, str) and len(found) != count:
                    raise DataError(f"{where}: row {index} holds {len(found)} images, the first row {count}")
                return _reference(found[position], column, f"{where}: image {at} of row {index}").open()

            return ImageRef(column, open_one)

        rows = [Row(str(index), texts[index], index, where) for index in range(len(dataset))]
        found = [row.tags(tags) for row in rows]
        shown: list[Any] = [
            [opened(row.index, at) for at in range(count)] if lazy else _items(row, images) for row in rows
        ]
        return cls.from_groups(
            shown,
            [_items(row, captions) for row in rows],
            name=name,
            ids=[row.group_id(id) for row in rows],
            tags={tag: [one[tag] for one in found] for tag in tags},
            **fields,
        )

    @classmethod
    def _of(cls, name: str, groups: Sequence[Group], fields: TaskFields, frames: int = 0) -> Task:
        """The task of groups, of images or of videos of so many frames, checked as far as that needs no model."""
        unknown = fields.keys() - TaskFields.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"task '{name}': unknown argument '{min(unknown)}'; known: {', '.join(TaskFields.__annotations__)}"
            )
        if not groups:
            raise DataError(f"task '{name}': there is no group")
        shape = (len(groups[0].images), len(groups[0].captions))
        metrics = fields.pop("metrics", None)
        if metrics is None:
            more_images = {"text_score", "individual_match"} if shape[0] > shape[1] else set()
            undefined = {"image_score"} if shape[0] == 1 else more_images
            metrics = [metric for metric in USUAL_METRICS if metric not in undefined]
            metrics += ["global_assignment_accuracy"] if fields.get("matching") == "global" else []
        columns = {"shape": shape, "n_groups": len(groups), "tags": list(groups[0].tags)}
        columns["true_captions"] = fields.pop("true_captions", 1)
        pooling = {"pooling": fields.pop("pooling")} if "pooling" in fields else {}
        if pooling and not frames:
            raise UsageError(f"task '{name}': pooling is for videos, and the items are images")
        source = {"kind": KIND, **({"video": {"frames": frames, **pooling}} if frames else {})}
        stated = {"task": name, "version": 0, "source": source, "group": columns, "metrics": list(metrics)}
        try:
            spec = TaskSpec.model_validate({**stated, **fields})
        except ValidationError as error:
            raise UsageError(f"task '{name}': {describe(error, TaskSpec)}") from None
        check_groups(spec, groups)
        return cls(spec, None, tuple(groups))

    @property
    def name(self) -> str:
        """What results call the task."""
        return self.spec.task

    def with_source(self, changes: Mapping[str, object]) -> TaskFile:
        """The task itself; UsageError if there are changes, since no source is read."""
        if changes:
            raise UsageError(f"task '{self.name}' is in memory, so task_args do not apply to it; run it separately")
        return self

    def __len__(self) -> int:
        return len(self.groups)

    def __repr__(self) -> str:
        groups = f"{len(self)} group{'' if len(self) == 1 else 's'}"
        return f"Task({self.name!r}, {groups} of {self.spec.shape})"


class _Images:
    """References to images: the same object or file is always the same image."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._names: dict[int | Path, str] = {}
        self._taken: dict[str, int | Path] = {}
        self._held: list[object] = []  # so that identities stay unique

    def of(self, image: object, name: str, group_id: str) -> ImageRef:
        """A reference to an image, named by the path of its file, or ``name``."""
        key: int | Path = id(image)
        if isinstance(image, str | os.PathLike):
            key = Path(image)
            name = str(image)
        self._held.append(image)
        name = self._names.setdefault(key, name)
        if self._taken.setdefault(name, key) != key:
            raise DataError(f"{self._where}: two images of group {group_id} and others have the name {name!r}")
        return _reference(image, name, f"{self._where}: image {name!r:.80} of group {group_id}")


def _frames_of_each(where: str, images: Sequence[Sequence[object]], labels: Sequence[str]) -> int:
    """How many frames every item has; 0 if the items are images. DataError if one differs from the first."""
    counts = [[len(item) if isinstance(item, list | tuple) else 0 for item in row] for row in images]
    first = counts[0][0] if counts and counts[0] else 0
    for label, row in zip(labels, counts, strict=True):
        if any(count != first for count in row):
            named = [f"a video of {count} frames" if count else "an image" for count in (row[0], *row, first)]
            other = next(text for text in named if text != named[-1])
            raise DataError(f"{where}: group {label} has {other}, and the first item is {named[-1]}")
    return first


def _reference(image: object, name: str, what: str) -> ImageRef:
    from PIL import Image as Pillow

    match image:
        case ImageRef():
            return replace(image, name=name)
        case Pillow.Image():
            return ImageRef(name, lambda: image)
        case np.ndarray():
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                layout = f"{image.dtype} {list(image.shape)}"
                raise DataError(f"{what} is an array {layout}; expected uint8 [height, width, 3]")
            return ImageRef(name, lambda: Pillow.fromarray(np.ascontiguousarray(image)))
        case str() | os.PathLike():
            path = Path(image)
            if not path.is_file():
                raise DataError(f"{what} is not a file")
            return ImageRef(name, partial(open_image, path), path, path.read_bytes)
        case list() | tuple() if image:
            frames = [_reference(frame, name, f"frame {position} of {what}") for position, frame in enumerate(image)]
            return ImageRef(name, lambda: stacked([as_rgb(frame.open()) for frame in frames]))
    raise DataError(
        f"{what} is a {type(image).__name__}; expected an image of Pillow, a uint8 array [height, width, 3], or a path"
    )


def _items(row: Row, columns: str | Sequence[str]) -> list[Any]:
    """The images or captions of a row: of one column, which holds one or a list, or of several columns."""
    cells = [row.cell(column) for column in ([columns] if isinstance(columns, str) else columns)]
    return list(cells[0]) if isinstance(columns, str) and isinstance(cells[0], list | tuple) else cells
