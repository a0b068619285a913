"""Task files: one YAML per task, checked key by key; ``include:`` shares fields between variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ttmbench._arrays.matchings import count_matchings
from ttmbench._util.limits import limit
from ttmbench._util.text import Unreadable, read_yaml
from ttmbench._util.third_party_errors import describe, first_error
from ttmbench.config import TTMConfig
from ttmbench.data.cells import PathPart
from ttmbench.data.kinds import ClassSpec, Kind
from ttmbench.data.loading import HUB_KINDS, local_path
from ttmbench.data.origin import TagFile
from ttmbench.data.selection import Condition, Where
from ttmbench.errors import UsageError
from ttmbench.matching import MAX_INJECTIONS
from ttmbench.results.tag_means import TagMean
from ttmbench.types import GroupShape

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MAX_INCLUDES = 8
COLUMN_KEYS = ("id", "images", "captions", "tags", "crop", "where", "first_rows")  # of group: what sources are told
Tags = list[str] | dict[str, str | PathPart]
Defect = Literal["equal_captions", "equal_images", "equal_groups"]
Fact = Literal["groups", "format", "pairs", "aggregation"]
Evidence = Literal["file", "scores", "stated", "inferred", "unknown"]
Crop = Annotated[list[str], Field(min_length=4, max_length=4)]
OF_EACH_SOURCE = ("revision", "exif")  # options that --task_args reaches inside a list of sources


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class GroupSpec(BaseModel):
    """Shape and number of groups, and the columns of the raw data that hold them.

    Attributes:
        shape: images and captions in a group; for tasks of kind ``groups`` alone.
        true_captions: how many captions are true for each image.
        n_groups: number of groups; for other kinds, of images.
        n_captions: of a retrieval task, all captions together.
        wrong_sizes: another number of groups that copies of the data have -> why it is wrong.
        id: column of the group's id.
        images: columns of the images; or one column that holds them all in a list.
        captions: columns of the captions; or one column that holds them all in a list.
        label: column of an image's class, in a classification task.
        tags: columns to keep with each group; or tag -> column, template of columns, or part of a path.
        crop: columns of left edge, upper edge, width and height of the part of each image that is used.
        where: column -> what its cell has to be for the row to be read.
        first_rows: how many rows of each file are read, of those that ``where`` keeps.
        known_defects: what data are known to have, so that the check of a task counts it and does not refuse it.
        constant_tags: tags that are the same for all groups.
        tag_files: tag -> JSON file in the data folder, group id -> tag or tags; and where it comes from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: tuple[int, int] | None = None
    true_captions: int = Field(1, ge=1)
    n_groups: int | None = Field(None, ge=1)
    n_captions: int | None = Field(None, ge=1)
    wrong_sizes: dict[int, str] = {}
    id: str | None = None
    images: str | list[str] = []
    captions: str | list[str] = []
    label: str | None = None
    tags: Tags = []
    crop: Crop | None = None
    where: Where = {}
    first_rows: int | None = Field(None, ge=1)
    known_defects: list[Defect] = []
    constant_tags: dict[str, str] = {}
    tag_files: dict[str, TagFile] = {}

    @model_validator(mode="after")
    def _shape_is_one(self) -> GroupSpec:
        captions = 0 if self.shape is None else GroupShape(*self.shape, self.true_captions).captions
        if captions > limit("captions"):
            raise ValueError(f"a group of {captions} captions is too large: at most {limit('captions')}")
        if self.n_groups is not None and self.n_groups > limit("groups"):
            raise ValueError(f"{self.n_groups} groups are too many: at most {limit('groups')}")
        return self


class TaskSpec(BaseModel):
    """A task as its YAML states it.

    Attributes:
        task: name; equals the file's name without ending.
        version: raised whenever the task's numbers can change.
        description: one or two sentences.
        reference: address of the paper or page.
        citation: BibTeX.
        license: of the data.
        label_errors: what is known to be wrong with the labels, and what is done about it.
        images_from: names of the image collections that the images are of, as models state what they were trained on.
        images_needed: which images a run needs, and how large they are, for people.
        evidence: how each fact of the data is known: counted in the real ``file``, computed from published
            ``scores``, ``stated`` by their owner, ``inferred``, or ``unknown``.
        gated: whether the data's owner asks for a login or an agreement.
        aggregate: dataset of which this is a subset; its mean is reported when all subsets are run.
        parts: the ``aggregate`` of the tasks that have this task's groups by their tags: stored scores that state tags
            are scored for each of them, too.
        tag: labels by which ``--tasks`` selects several tasks.
        kind: what is asked of the model.
        source: ``kind`` of reader, and its options.
        classes: of a classification task.
        rerank_k: of a retrieval task, how many candidates a model that scores pairs is given of each query.
        group: shape, number and columns.
        matching: inside groups, or one assignment over all images and captions.
        metrics: names, in the order of tables.
        means: name -> a mean of means over values of tags, beside the mean over all groups.
        ttm: TTM settings: ``defaults`` for every model, and presets by model name.
        noise_images: from how many noise images a generative model's P(t) is taken, if the model is not told.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)
    version: int = Field(ge=0)
    description: str = ""
    reference: str = ""
    citation: str = ""
    license: str = ""
    label_errors: str = ""
    images_from: Annotated[list[str], BeforeValidator(_one_or_many)] = []
    images_needed: str = ""
    evidence: dict[Fact, Evidence] = {}
    gated: bool = False
    aggregate: str | None = None
    parts: str | None = None
    tag: Annotated[list[str], BeforeValidator(_one_or_many)] = []
    kind: Kind = "groups"
    source: dict[str, Any]
    group: GroupSpec
    classes: ClassSpec | None = None
    rerank_k: int | None = Field(None, ge=1)
    matching: Literal["group", "global"] = "group"
    metrics: list[str] = Field(min_length=1)
    means: dict[str, TagMean] = {}
    ttm: dict[str, dict[str, Any]] = {}
    noise_images: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> TaskSpec:
        _check_kind(self)
        if self.kind == "groups" and self.matching == "global" and self.shape.more_images:
            raise ValueError(f"a {self.shape} task has images without a caption, so it cannot be matched globally")
        if (
            self.kind == "groups"
            and self.matching == "group"
            and count_matchings(self.shape.images, self.shape.captions, self.shape.true_captions) > MAX_INJECTIONS
        ):
            raise ValueError(
                f"a {self.shape} group has more than {MAX_INJECTIONS} matchings; use smaller groups or matching: global"
            )
        if not isinstance(self.source.get("kind"), str):
            raise ValueError("'source' needs a 'kind'")
        for name, settings in self.ttm.items():
            unknown = sorted(set(settings) - set(TTMConfig.model_fields))
            if unknown:
                raise ValueError(f"unknown key 'ttm.{name}.{unknown[0]}'; known: {', '.join(TTMConfig.model_fields)}")
            try:
                TTMConfig(**settings)
            except ValidationError as error:
                raise ValueError(f"ttm.{name}: {describe(error)}") from None
        return self

    @property
    def shape(self) -> GroupShape:
        """Images, captions and true captions in each group.

        Raises:
            UsageError: the task is of another kind.
        """
        if self.group.shape is None:
            raise UsageError(f"task '{self.task}' is of kind {self.kind}: it has no groups, which this needs")
        return GroupShape(*self.group.shape, self.group.true_captions)

    @property
    def extent(self) -> str:
        """The shape in words: of a group, or how many images meet how many captions or classes."""
        if self.kind == "groups":
            return str(self.shape)
        others = self.group.n_captions if self.classes is None else self.classes.n_classes
        return f"{self.group.n_groups or '?'}x{others or '?'}"

    @property
    def is_global(self) -> bool:
        """Whether TTM matches over all images and captions at once."""
        return self.matching == "global"


def _check_kind(spec: TaskSpec) -> None:
    """ValueError for a key that another kind of task has, or a missing one of this kind."""
    group = spec.group
    if (spec.kind == "groups") != (group.shape is not None):
        raise ValueError(
            "group.shape: images and captions of a group are needed"
            if spec.kind == "groups"
            else f"group.shape: a task of kind {spec.kind} has no groups, so leave it out"
        )
    if (spec.kind == "classification") != (spec.classes is not None):
        raise ValueError(
            "classes: names and templates are needed"
            if spec.classes is None
            else f"classes: a task of kind {spec.kind} has none"
        )
    own: dict[str, tuple[bool, str]] = {
        "group.n_captions": (group.n_captions is not None, "retrieval"),
        "rerank_k": (spec.rerank_k is not None, "retrieval"),
        "group.label": (group.label is not None, "classification"),
        "ttm": (bool(spec.ttm), "groups"),
        "matching: global": (spec.matching == "global", "groups"),
    }
    for key, (given, kind) in own.items():
        if given and spec.kind != kind:
            raise ValueError(f"{key}: only a task of kind {kind} has it, this one is of kind {spec.kind}")
    if group.n_groups is not None and group.n_captions is not None and group.n_captions < group.n_groups:
        raise ValueError(f"group.n_captions: {group.n_captions} captions are too few for {group.n_groups} images")


@dataclass(frozen=True)
class TaskFile:
    """A task and the folder its file lies in (None inside a package archive)."""

    spec: TaskSpec
    folder: Path | None

    def with_source(self, changes: Mapping[str, Any]) -> TaskFile:
        """The task with changes to its source (``--task_args``); UsageError for another kind.

        Where it lists several sources, ``revision`` and ``exif`` change those of them that have one.
        """
        if not changes:
            return self
        if "kind" in changes:
            raise UsageError("--task_args cannot change the kind of a source")
        source, own = dict(self.spec.source), dict(changes)
        inner = [one for one in source.get("of", ()) if isinstance(one, dict)]
        for key in OF_EACH_SOURCE:
            if key in own and any(key in one for one in inner):
                value = own.pop(key)
                inner = [{**one, key: value} if key in one else one for one in inner]
        if source["kind"] in HUB_KINDS and isinstance(own.get("path"), str):
            own["path"] = local_path(own["path"], Path())  # of the command line, so of the working directory
        if inner:
            source["of"] = inner
        return TaskFile(self.spec.model_copy(update={"source": {**source, **own}}), self.folder)


@dataclass(frozen=True)
class AlreadyRead:
    """What was read a moment ago, for tasks of one folder that include the same.

    Attributes:
        files: path -> what the file held.
        folders: path -> the YAMLs in the folder, by name: all that a file of it may include.
    """

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    folders: dict[str, dict[str, Traversable]] = field(default_factory=dict)

    def beside(self, path: Traversable) -> dict[str, Traversable]:
        """The YAMLs in the folder of a file."""
        parent = getattr(path, "parent", None)
        if parent is None:
            return {}
        if str(parent) not in self.folders:
            entries = [entry for entry in parent.iterdir() if entry.name.endswith((".yaml", ".yml"))]
            self.folders[str(parent)] = {entry.name: entry for entry in entries}
        return self.folders[str(parent)]


def load_task(path: Traversable, *, check_name: bool = True, read: AlreadyRead | None = None) -> TaskFile:
    """Reads and checks a task file.

    Args:
        path: the YAML file.
        check_name: also demand that ``task:`` equals the file's name.
        read: what was read a moment ago, and takes what is read now.

    Returns:
        The task.

    Raises:
        UsageError: the file cannot be read, is no YAML mapping, or has a wrong or unknown key; file and key are named.
    """
    merged = _read(path, 0, AlreadyRead() if read is None else read)
    try:
        spec = TaskSpec(**merged)
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, _model_at(error))}") from None
    except TypeError as error:
        raise UsageError(f"{path}: keys must be words ({error})") from None
    stem = path.name.rsplit(".", 1)[0]
    if check_name and spec.task != stem:
        raise UsageError(f"{path}: 'task' is '{spec.task}' but the file is named '{stem}'; they must be equal")
    return TaskFile(spec, path.parent if isinstance(path, Path) else None)


def _read(path: Traversable, depth: int, read: AlreadyRead) -> dict[str, Any]:
    """One file with what it includes underneath it; the including file's fields win."""
    if depth > MAX_INCLUDES:
        raise UsageError(f"{path}: 'include' goes more than {MAX_INCLUDES} files deep (does a file include itself?)")
    if str(path) not in read.files:
        try:
            content = read_yaml(path)
        except Unreadable as error:
            raise UsageError(f"{path}: {error}") from None
        if not isinstance(content, dict):
            raise UsageError(f"{path}: a task file is a mapping of keys, got {type(content).__name__}")
        read.files[str(path)] = content
    content = _copied(read.files[str(path)])
    merged: dict[str, Any] = {}
    for name, without in _includes(path, content.pop("include", [])):
        folder = read.beside(path)
        if name not in folder:
            raise UsageError(f"{path}: 'include' names '{name}', which is no file of the same folder")
        below = _read(folder[name], depth + 1, read)
        absent = [key for key in without if key not in below]
        if absent:
            raise UsageError(f"{path}: 'include' leaves out '{absent[0]}', which {name} does not have")
        merged = _merge(merged, {key: value for key, value in below.items() if key not in without})
    return _merge(merged, content)


def _copied(value: Any) -> Any:
    """A value of YAML, with mappings and lists of its own; copy.deepcopy takes longer than the rest of a task file."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _includes(path: Traversable, value: Any) -> Iterator[tuple[str, list[str]]]:
    """File names, and the keys of each that are not taken over."""
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, str):
            yield entry, []
            continue
        without = entry.get("without", []) if isinstance(entry, dict) else None
        if (
            not isinstance(entry, dict)
            or set(entry) - {"file", "without"}
            or not isinstance(entry.get("file"), str)
            or not isinstance(without, list)
        ):
            raise UsageError(
                f"{path}: 'include' should be a file name, {{file: name, without: [keys]}}, or a list of these, "
                f"got {entry!r:.80}"
            )
        yield entry["file"], without


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _model_at(error: ValidationError) -> type[BaseModel]:
    """The keys that are known where the culprit stands; of unions and deeper places none are told."""
    place = tuple(str(part) for part in first_error(error)["loc"])
    if len(place) < 2:
        return TaskSpec
    if place[0] in ("group", "classes") and len(place) == 2:
        return GroupSpec if place[0] == "group" else ClassSpec
    if place[0] == "means" and len(place) == 3:
        return TagMean
    return Condition if place[:2] == ("group", "where") and len(place) == 4 else BaseModel


def task_schema() -> dict[str, Any]:
    """The JSON Schema of task files."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **TaskSpec.model_json_schema()}
