"""Task files: one YAML a task, in which ``include:`` shares fields; found by name, and checked key by key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.resources.abc import Traversable
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ttmbench._arrays import count_matchings
from ttmbench._util.console import warn
from ttmbench._util.file_io import limit, read_yaml
from ttmbench._util.third_party_errors import describe, listed
from ttmbench.config import TTMConfig, nested, refuse_password
from ttmbench.data.paths import HUB_KINDS, TagFile, local_path
from ttmbench.data.rows import PathPart, Picks, Where
from ttmbench.data.video import Video
from ttmbench.errors import UsageError
from ttmbench.matching import MAX_INJECTIONS
from ttmbench.plugins.registry import ENDINGS, Registry, load_target, unknown
from ttmbench.results.summary import TagMean
from ttmbench.types import Group, GroupShape, SourceRequest

Tags = list[str] | dict[str, str | PathPart]
Defect = Literal["equal_captions", "equal_images", "equal_groups"]
Fact = Literal["groups", "format", "pairs", "aggregation"]
Evidence = Literal["file", "scores", "stated", "inferred", "unknown"]
Crop = Annotated[list[str], Field(min_length=4, max_length=4)]
OF_EACH_SOURCE = ("revision", "exif")  # options that --task_args reaches inside a list of sources
OneOrMany = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]

Kind = Literal["groups", "retrieval", "classification"]
SCOPES: dict[str, tuple[str, ...]] = {
    "groups": ("group", "task", "global", "captions"),
    "retrieval": ("i2t", "t2i"),
    "classification": ("class",),
}
"""Kind of task -> scopes of the metrics that are defined for it."""


def _has_place(template: str) -> str:
    if template.count("{}") != 1:
        raise ValueError(f"{template!r:.80} should have {{}} once, where the caption goes, as in 'a photo of {{}}'")
    return template


def _parts(source: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = [source]
    for one in found:  # which grows
        listed = one.get("of")
        found += [part for part in listed if isinstance(part, Mapping)] if isinstance(listed, list) else []
    return found


Template = Annotated[str, AfterValidator(_has_place)]
PACKAGED = re.compile(r"open_clip:[A-Z][A-Z0-9_]*")


class ClassSpec(BaseModel):
    """The classes of a classification task, and the prompts that name them.

    Attributes:
        names: list of class names in the order of the labels; or ``open_clip:NAME``, a list of the installed package,
            such as ``open_clip:IMAGENET_CLASSNAMES``.
        templates: list of prompts with ``{}`` for the name; or ``open_clip:NAME``, such as
            ``open_clip:OPENAI_IMAGENET_TEMPLATES``.
        count: number of classes; required if ``names`` is not a list.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: str | list[str]
    templates: str | list[str] = ["a photo of a {}."]
    count: int | None = Field(None, ge=2)

    @model_validator(mode="after")
    def _is_whole(self) -> ClassSpec:
        for key, value in (("names", self.names), ("templates", self.templates)):
            if isinstance(value, str) and not PACKAGED.fullmatch(value):
                raise ValueError(f"classes.{key}: '{value}' is neither a list nor open_clip:NAME")
            if isinstance(value, list) and (not value or not all(text.strip() for text in value)):
                raise ValueError(f"classes.{key}: the list is empty, or an entry of it is")
        wrong = [text for text in self.templates if text.count("{}") != 1] if isinstance(self.templates, list) else []
        if wrong:
            raise ValueError(f"classes.templates: {wrong[0]!r:.80} should have {{}} once, where the name goes")
        if isinstance(self.names, str) and self.count is None:
            raise ValueError("classes.count is needed where the names come from a package")
        if isinstance(self.names, list) and self.count not in (None, len(self.names)):
            raise ValueError(f"classes.count is {self.count}, but {len(self.names)} names are listed")
        if self.n_classes < 2:
            raise ValueError("classes.names: at least two classes are needed")
        return self

    @property
    def n_classes(self) -> int:
        """Number of classes; classes of the same name count separately."""
        return len(self.names) if isinstance(self.names, list) else self.count or 0


class Columns(BaseModel):
    """The columns of the raw data that hold groups, and which rows are read.

    Attributes:
        id: column of the group's ID, a unique text or number; without it the row number from 0, or the key of a JSON
            object.
        images: columns of the images, one for each image of a group; or one column that contains a list.
        captions: columns of the captions, the i-th correct for the i-th image; or one column that contains a list.
        label: column of an image's class, as a number from 0 or a name; for classification.
        tags: columns to report results by; or tag -> column, template of columns, or part of a path.
        crop: columns of ``[x, y, width, height]``, the part of each image that is used.
        where: column -> the condition that its cell must meet for the row to be read.
        first_rows: maximum number of rows from each file, among those that meet ``where``.
        pick: name of a new cell -> the item of a list whose position another cell contains.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = None
    images: str | list[str] = []
    captions: str | list[str] = []
    label: str | None = None
    tags: Tags = []
    crop: Crop | None = None
    where: Where = {}
    first_rows: int | None = Field(None, ge=1)
    pick: Picks = Field({}, exclude_if=not_)  # so that tasks without one have the keys of runs that they had


class GroupSpec(Columns):
    """Shape and number of groups, and the columns of the raw data that hold them.

    Attributes:
        shape: ``[images, captions]`` of every group, at least 2 images or 2 captions; required for kind ``groups``.
        true_captions: number of correct captions for each image; they come first.
        n_groups: number of groups (of images in other kinds); data of another size are an error. Required for
            ``rendered``.
        n_captions: number of captions of a retrieval task; another number is an error.
        wrong_sizes: number of groups in incorrect copies of the data -> what is wrong with them.
        known_defects: ``equal_captions``, ``equal_images``, ``equal_groups``: ``ttmbench validate`` counts them instead
            of failing.
        constant_tags: tag -> value for all groups.
        tag_files: tag -> JSON file in the data folder that maps group IDs to a tag or a list of tags, or
            ``{file: PATH, get: ORIGIN}``; a missing file adds nothing.
    """

    shape: tuple[int, int] | None = None
    true_captions: int = Field(1, ge=1)
    n_groups: int | None = Field(None, ge=1)
    n_captions: int | None = Field(None, ge=1)
    wrong_sizes: dict[int, str] = {}
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
        task: name, equal to the file's name without ending: letters, digits, ``_``, ``.`` and ``-``.
        version: whole number; increase it whenever the task's numbers can change.
        description: one or two sentences for ``ttmbench ls tasks --json``.
        reference: address of the paper or page.
        citation: BibTeX entry.
        license: licence of the data.
        label_errors: known label errors, and how the task handles them.
        images_from: image collections that the images come from, such as ``coco``; results of models that were trained
            on one of them are marked.
        images_needed: which images a run needs, and their size, as text for readers.
        evidence: fact (``groups``, ``format``, ``pairs``, ``aggregation``) -> how it is known: counted in the real
            ``file``, computed from published ``scores``, ``stated`` by the owner, ``inferred`` or ``unknown``.
        gated: whether the owner of the data asks for a login or an agreement.
        aggregate: dataset of which this task is a subset; its mean is reported when all subsets were run.
        parts: the ``aggregate`` of tasks that contain this task's groups by tag; ``ttmbench score`` scores them too.
        tag: one label or a list; ``--tasks`` selects by them.
        kind: ``groups``, ``retrieval`` or ``classification``.
        source: where the data come from: ``kind`` and its options.
        group: shape, number and columns of the groups.
        classes: names and prompts of the classes; for classification.
        rerank_k: candidates per query for ``--rerank``; for retrieval.
        matching: ``group``; or ``global``, one assignment over all images and captions.
        metrics: names from ``ttmbench ls metrics``, in the order of tables.
        means: name -> a mean over values of tags, reported next to the mean over all groups.
        ttm: TTM settings: ``defaults`` for every model; presets for ``--ttm_preset paper`` by model name.
        noise_images: number of noise images for the P(t) of generative scores, unless the model sets it (3).
        caption_template: text with one ``{}`` that replaces every caption, such as ``a photo of {}``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)
    version: int = Field(ge=0)
    description: str = ""
    reference: str = ""
    citation: str = ""
    license: str = ""
    label_errors: str = ""
    images_from: OneOrMany = []
    images_needed: str = ""
    evidence: dict[Fact, Evidence] = {}
    gated: bool = False
    aggregate: str | None = None
    parts: str | None = None
    tag: OneOrMany = []
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
    caption_template: Template | None = Field(None, exclude_if=not_)

    @field_validator("task", "source", "metrics")
    @classmethod
    def _is_known(cls, value: Any, info: ValidationInfo) -> Any:
        """Where a file is read, its context looks names up, so that unknown ones are reported with other errors."""
        if info.context is not None:
            info.context(info.field_name, value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> TaskSpec:
        if wrong := list(self._contradictions()):
            raise ValueError(listed(wrong))
        return self

    def _contradictions(self) -> Iterator[str]:
        """What is wrong with keys together, each of which is right."""
        group, kind = self.group, self.kind
        if kind == "groups" and group.shape is None:
            yield "group.shape: images and captions of a group are needed"
        if kind != "groups" and group.shape is not None:
            yield f"group.shape: a task of kind {kind} has no groups, so omit it"
        if kind == "classification" and self.classes is None:
            yield "classes: names and templates are needed"
        if kind != "classification" and self.classes is not None:
            yield f"classes: a task of kind {kind} has none"
        for key, stated, its_kind in (
            ("group.n_captions", group.n_captions is not None, "retrieval"),
            ("rerank_k", self.rerank_k is not None, "retrieval"),
            ("group.label", group.label is not None, "classification"),
            ("ttm", bool(self.ttm), "groups"),
            ("caption_template", self.caption_template is not None and kind == "classification", "groups or retrieval"),
            ("matching: global", self.matching == "global", "groups"),
        ):
            if stated and kind != its_kind:
                yield f"{key}: only a task of kind {its_kind} has it, this one is of kind {kind}"
        if group.n_groups is not None and group.n_captions is not None and group.n_captions < group.n_groups:
            yield f"group.n_captions: {group.n_captions} captions are too few for {group.n_groups} images"
        if kind == "groups" and group.shape is not None:
            shape = self.shape
            if self.is_global and shape.more_images:
                yield f"a {shape} task has images without a caption, so it cannot be matched globally"
            count = 0 if self.is_global else count_matchings(shape.images, shape.captions, shape.true_captions)
            if count > MAX_INJECTIONS:
                most = f"more than {MAX_INJECTIONS} matchings"
                yield f"a {shape} group has {most}; use smaller groups or matching: global"
        if not all(isinstance(source.get("kind"), str) for source in self.sources):
            yield "every source needs a 'kind'"
        try:
            if self.video is not None and group.crop is not None:
                yield "group.crop: boxes are for images, and source.video says that the files are videos"
        except ValidationError as error:
            yield f"source.video: {describe(error, Video)}"
        for name, settings in self.ttm.items():
            unknown = sorted(key for key in settings if not TTMConfig.takes(key))
            for key in unknown:
                yield f"unknown key 'ttm.{name}.{key}'; known: {', '.join(TTMConfig.model_fields)}"
            try:
                TTMConfig(**{key: value for key, value in settings.items() if key not in unknown})
            except ValidationError as error:
                yield f"ttm.{name}: {describe(error)}"

    @property
    def shape(self) -> GroupShape:
        """Images, captions and true captions in each group; UsageError for a task of another kind."""
        if self.group.shape is None:
            raise UsageError(f"task '{self.task}' is of kind {self.kind}: it has no groups, which this needs")
        return GroupShape(*self.group.shape, self.group.true_captions)

    @property
    def sources(self) -> list[Mapping[str, Any]]:
        """The source, and those that it combines (``of``), at any depth."""
        return _parts(self.source)

    @property
    def video(self) -> Video | None:
        """How the videos of the task are read; None for images. Where several sources are listed, that of the first."""
        parts = [part for part in self.sources if part.get("video") is not None]
        return Video.model_validate(parts[0]["video"]) if parts else None

    @property
    def extent(self) -> str:
        """The shape as text: of a group, or number of images x number of captions or classes."""
        if self.kind == "groups":
            return str(self.shape)
        others = self.group.n_captions if self.classes is None else self.classes.n_classes
        return f"{self.group.n_groups or '?'}x{others or '?'}"

    @property
    def is_global(self) -> bool:
        """Whether TTM matches over all images and captions at once."""
        return self.matching == "global"


@dataclass(frozen=True)
class TaskFile:
    """A task and its file's folder (None inside a package archive); ``groups`` of a task in memory."""

    spec: TaskSpec
    folder: Path | None
    groups: tuple[Group, ...] | None = field(default=None, repr=False)

    def with_source(self, changes: Mapping[str, object]) -> TaskFile:
        """The task with changes to its source and ``caption_template`` (``--task_args``); UsageError for a wrong one.

        Where it lists several sources, ``revision`` and ``exif`` change those of them that have one.
        """
        if not changes:
            return self
        if "kind" in changes:
            raise UsageError("--task_args cannot change the kind of a source")
        try:
            changed = nested(changes, ["video"])
        except ValueError as error:
            raise UsageError(f"--task_args: {error}") from None
        stated = self.spec.model_dump(exclude_unset=True, by_alias=True)
        stated |= {key: changed.pop(key) for key in ("caption_template",) if key in changed}
        source, listed = dict(self.spec.source), self.spec.source.get("of")
        inner = [dict(part) for part in listed if isinstance(part, Mapping)] if isinstance(listed, list) else []
        if "video" in changed:
            video, asked = self.spec.video, changed.pop("video")
            if video is None or not isinstance(asked, Mapping):
                raise UsageError(f"--task_args video.frames=N: task '{self.spec.task}' has no videos")
            for part in (source, *inner):
                part |= {"video": {**video.model_dump(), **asked}} if "video" in part else {}
        for key in OF_EACH_SOURCE:
            if any(key in part for part in inner) and key in changed:
                value = changed.pop(key)
                inner = [{**part, key: value} if key in part else part for part in inner]
        if source["kind"] in HUB_KINDS and isinstance(path := changed.get("path"), str):
            changed["path"] = local_path(path, Path())  # of the command line, so of the working directory
        source |= {"of": inner} if inner else {}
        try:
            spec = TaskSpec.model_validate({**stated, "source": source | changed})
        except ValidationError as error:
            raise UsageError(f"--task_args for task '{self.spec.task}': {describe(error, TaskSpec)}") from None
        return TaskFile(spec, self.folder)

    def with_metrics(self, registry: Registry, names: Sequence[str]) -> Self:
        """The task with further metrics (``--metrics``); UsageError for one that is unknown or of another kind."""
        metrics = list(dict.fromkeys([*self.spec.metrics, *names]))
        return _checked(registry, replace(self, spec=self.spec.model_copy(update={"metrics": metrics})))


MAX_INCLUDES = 8
AlreadyRead = dict[str, object]
"""Path -> content of a task file, for tasks of one folder that include the same."""
AnyTask = TypeVar("AnyTask", bound=TaskFile)


def find_task(registry: Registry, name: str, read: AlreadyRead | None = None) -> TaskFile:
    """A task by name, or by the path of its file, whose name must be that of the task; ``read``: `AlreadyRead`.

    UsageError for none, or a file that cannot be read or is no YAML mapping; with all its wrong keys for others.
    """
    path: Traversable
    if name.endswith(ENDINGS) and name not in registry.task_files:
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"task file {name} does not exist")
    else:
        path = registry.task_files[name]
    stem = path.name.rsplit(".", 1)[0]
    folder = path.parent if isinstance(path, Path) else None

    def check(key: str, value: Any) -> None:
        """ValueError for what a key names and nothing has, and for options that the source does not take."""
        own, wrong = folder if name.endswith(ENDINGS) else None, []
        if key == "task" and value != stem:
            wrong.append(f"the file is named {path.name}; write 'task: {stem}', or rename the file to {value}.yaml")
        named: Sequence[Any] = _parts(value) if key == "source" else value if key == "metrics" else ()
        for one in named:
            try:
                _check_source(registry, one, own) if key == "source" else registry.metrics[one]
            except UsageError as error:
                wrong.append(str(error).removeprefix("source: "))
        if wrong:
            raise ValueError("; ".join(wrong))

    try:
        spec = TaskSpec.model_validate(_read(path, 0, {} if read is None else read), context=check)
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, TaskSpec)}") from None
    return _checked(registry, TaskFile(spec, folder))


def _check_source(registry: Registry, source: Mapping[str, Any], folder: Path | None) -> None:
    """UsageError for an unknown kind, and for options that it does not take if the file has a ``folder``."""
    spec = registry.sources[source["kind"]] if isinstance(source.get("kind"), str) else None
    if spec is None or not spec.needs or folder is None or {"of", "columns"} & source.keys():
        return  # a source of sources reads them with options of its own
    options = {key: value for key, value in source.items() if key != "kind"}
    try:
        load_target(spec.needs)(SourceRequest(options, {}, GroupShape(1, 2), folder=folder))
    except UsageError:
        raise
    except Exception:  # it is called again with all that it needs
        return


def all_tasks(registry: Registry) -> dict[str, TaskFile]:
    """Every registered task by name, sorted; UsageError for a wrong one, but of an installed plugin only a warning."""
    tasks: dict[str, TaskFile] = {}
    read: AlreadyRead = {}
    for name in sorted(registry.task_files):
        try:
            tasks[name] = find_task(registry, name, read)
        except UsageError as error:
            plugin = registry.task_files.plugins[name]
            if plugin not in registry.installed:
                raise
            warn(f"task '{name}' of plugin '{plugin}' is skipped: {error}")
    return tasks


def is_named(registry: Registry, word: str) -> bool:
    """Whether a word names one task or task file, and not a tag or a glob."""
    return word in registry.task_files or word.endswith(ENDINGS)


def select_tasks(registry: Registry, patterns: Sequence[str]) -> dict[str, TaskFile]:
    """Tasks by name, tag, glob or file as ``--tasks`` lists them: name -> task, each once, in the given order.

    UsageError for a pattern that fits nothing, with similar names, or an invalid file.
    """
    chosen: dict[str, TaskFile] = {}
    for pattern in patterns:
        if is_named(registry, pattern):
            task = find_task(registry, pattern)
            chosen.setdefault(task.spec.task, task)
            continue
        everything = all_tasks(registry)
        fitting = [name for name, task in everything.items() if pattern in task.spec.tag or fnmatchcase(name, pattern)]
        if not fitting:
            tags = {tag for task in everything.values() for tag in task.spec.tag}
            if Path(pattern).exists():
                raise UsageError(
                    f"{pattern} is not a task file (.yaml), which says what the columns of a table and the files of a "
                    "folder are; `ttmbench new task NAME` writes one to start from"
                )
            raise UsageError(unknown("task", pattern, [*everything, *tags], registry.broken))
        for name in fitting:
            chosen.setdefault(name, everything[name])
    return chosen


def take_in(registry: Registry, tasks: Sequence[AnyTask]) -> dict[str, AnyTask]:
    """Tasks in memory by name; UsageError for an unknown metric, or a name that another task has."""
    named: dict[str, AnyTask] = {}
    for task in tasks:
        name = task.spec.task
        if name in registry.task_files or name in named:
            raise UsageError(f"two tasks are named '{name}'; give the one in memory another name")
        named[name] = _checked(registry, task)
    return named


def _checked(registry: Registry, task: AnyTask) -> AnyTask:
    """The task; UsageError unless its metrics and schedules are registered, and fit it."""
    spec = task.spec
    try:
        metrics = {metric: registry.metrics[metric].scope for metric in spec.metrics}
        for settings in spec.ttm.values():
            if "schedule" in settings:
                registry.schedules[settings["schedule"]]
    except UsageError as error:
        raise UsageError(f"task {spec.task}: {error}") from None
    for metric, scope in metrics.items():
        if scope not in SCOPES[spec.kind]:
            kind = next(kind for kind, scopes in SCOPES.items() if scope in scopes)
            raise UsageError(
                f"task {spec.task}: metric '{metric}' is one of kind {kind}, the task is of kind {spec.kind}"
            )
    return task


def _read(path: Traversable, depth: int, read: AlreadyRead) -> dict[str, object]:
    """The fields of a file and of those that it includes; the including file's fields win."""
    if depth > MAX_INCLUDES:
        raise UsageError(f"{path}: 'include' goes more than {MAX_INCLUDES} files deep (does a file include itself?)")
    if str(path) not in read:
        read[str(path)] = read_yaml(path)
    content = read[str(path)]
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a task file is a mapping of keys, got {type(content).__name__}")
    refuse_password(str(path), content)
    merged: dict[str, object] = {}
    includes = content.get("include", [])
    for entry in includes if isinstance(includes, list) else [includes]:
        name, without = (entry.get("file"), entry.get("without", [])) if isinstance(entry, dict) else (entry, [])
        is_known = not isinstance(entry, dict) or entry.keys() <= {"file", "without"}
        if not (is_known and isinstance(name, str) and isinstance(without, list)):
            raise UsageError(
                f"{path}: 'include' must be a file name, {{file: name, without: [keys]}}, or a list of these, "
                f"got {entry!r:.80}"
            )
        parent = getattr(path, "parent", None)
        file = None if parent is None or set(name) & set("/\\") else parent / name
        if file is None or not name.endswith(ENDINGS) or not file.is_file():
            raise UsageError(f"{path}: 'include' names '{name}', which is not a file of the same folder")
        included = _read(file, depth + 1, read)
        absent = [key for key in without if key not in included]
        if absent:
            raise UsageError(f"{path}: 'include' leaves out '{absent[0]}', which {name} does not have")
        merged = _merge(merged, {key: value for key, value in included.items() if key not in without})
    return _merge(merged, {key: value for key, value in content.items() if key != "include"})


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """The fields of both; nothing is shared with either, so that a file read once can be included again."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, dict):
            underneath = merged.get(key)
            merged[key] = _merge(underneath if isinstance(underneath, dict) else {}, value)
        elif isinstance(value, list):
            merged[key] = [_merge({}, item) if isinstance(item, dict) else item for item in value]
        else:
            merged[key] = value
    return merged
