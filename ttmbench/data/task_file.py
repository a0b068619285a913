"""Task files: one YAML a task, in which ``include:`` shares fields; found by name, and checked key by key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.resources.abc import Traversable
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ttmbench._arrays import count_matchings
from ttmbench._util.console import warn
from ttmbench._util.file_io import read_yaml
from ttmbench._util.third_party import describe, listed
from ttmbench.config import TTMConfig, nested, refuse_password
from ttmbench.data.paths import HUB_KINDS, FirstKey, TagFile, local_path
from ttmbench.data.rows import PathPart, Picks, Where
from ttmbench.data.video import Video
from ttmbench.errors import UsageError
from ttmbench.matching import MAX_INJECTIONS
from ttmbench.plugins.registry import ENDINGS, Registry, unknown
from ttmbench.results.summary import TagMean
from ttmbench.types import Group, GroupShape

Tags = list[str] | dict[str, str | PathPart]
Defect = Literal["equal_captions", "equal_images", "equal_groups"]
Fact = Literal["groups", "format", "pairs", "aggregation"]
Evidence = Literal["file", "scores", "stated", "inferred", "unknown"]
Number = Annotated[int, Field(ge=1, le=10_000)]  # of images or captions in a group
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

    shape: tuple[Number, Number] | None = None
    true_captions: Number = 1
    n_groups: int | None = Field(None, ge=1, le=10_000_000)
    n_captions: int | None = Field(None, ge=1)
    wrong_sizes: dict[int, str] = {}
    known_defects: list[Defect] = []
    constant_tags: dict[str, str] = {}
    tag_files: dict[str, TagFile] = {}


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

    @model_validator(mode="after")
    def _is_consistent(self) -> TaskSpec:
        """Checks keys together, each of which is right alone."""
        group, kind, most = self.group, self.kind, MAX_INJECTIONS
        kinds = {
            "group.shape": (group.shape, "groups"),
            "group.n_captions": (group.n_captions, "retrieval"),
            "rerank_k": (self.rerank_k, "retrieval"),
            "group.label": (group.label, "classification"),
            "classes": (self.classes, "classification"),
            "ttm": (self.ttm or None, "groups"),
            "matching: global": (self.is_global or None, "groups"),
            "caption_template": (self.caption_template, "groups or retrieval"),
        }
        wrong = []
        for key, (value, its) in kinds.items():
            if value is not None and kind not in its:
                wrong.append(f"{key}: only a task of kind {its} has it, this one is of kind {kind}")
            if value is None and kind == its and key in ("group.shape", "classes"):
                wrong.append(f"{key}: a task of kind {kind} needs it")
        if group.n_captions is not None and group.n_captions < (group.n_groups or 0):
            wrong.append(f"group.n_captions: {group.n_captions} captions are too few for {group.n_groups} images")
        if not all(isinstance(source.get("kind"), str) for source in self.sources):
            wrong.append("every source needs a 'kind'")
        place: tuple[str, type[BaseModel]] = ("source.video", Video)
        try:
            if self.video is not None and group.crop is not None:
                wrong.append("group.crop: boxes are for images, and source.video says that the files are videos")
            for name, settings in self.ttm.items():
                place = (f"ttm.{name}", TTMConfig)
                TTMConfig(**settings)
        except ValidationError as error:
            wrong.append(f"{place[0]}: {describe(error, place[1])}")
        if group.shape is not None and not wrong:
            shape = self.shape
            if self.is_global and shape.more_images:
                wrong.append(f"a {shape} task has images without a caption, so it cannot be matched globally")
            elif not self.is_global and count_matchings(shape.images, shape.captions, shape.true_captions) > most:
                wrong.append(f"a {shape} group has more than {most} matchings; use smaller groups or matching: global")
        if wrong:
            raise ValueError(listed(wrong))
        return self

    @property
    def shape(self) -> GroupShape:
        """Images, captions and true captions in each group; UsageError for a task of another kind."""
        if self.group.shape is None:
            raise UsageError(f"task '{self.task}' is of kind {self.kind}: it has no groups, which this needs")
        return GroupShape(*self.group.shape, self.group.true_captions)

    @property
    def sources(self) -> list[Mapping[str, Any]]:
        """The source, and those that it combines (``of``), at any depth."""
        found: list[Mapping[str, Any]] = [self.source]
        for source in found:  # which grows
            inner = source.get("of")
            found += [part for part in inner if isinstance(part, Mapping)] if isinstance(inner, list) else []
        return found

    @property
    def video(self) -> Video | None:
        """How the videos of the task are read; None for images. Where several sources are listed, that of the first."""
        stated = next((part["video"] for part in self.sources if part.get("video") is not None), None)
        return None if stated is None else Video.model_validate(stated)

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
        return checked(registry, replace(self, spec=self.spec.model_copy(update={"metrics": metrics})))


MAX_INCLUDES = 8
AlreadyRead = dict[str, object]
"""Path -> content of a task file, for tasks of one folder that include the same."""
AnyTask = TypeVar("AnyTask", bound=TaskFile)


def find_task(registry: Registry, name: str, read: AlreadyRead | None = None) -> TaskFile:
    """A task by name, or by the path of its file, whose name must be that of the task; ``read``: `AlreadyRead`.

    UsageError for none, or a file that cannot be read or is not a task; with all wrong keys and unknown metrics.
    """
    is_own = name.endswith(ENDINGS) and name not in registry.task_files
    path: Traversable = Path(name) if is_own else registry.task_files[name]
    if not path.is_file():
        raise UsageError(f"task file {name} does not exist")
    content, stem = _read(path, 0, {} if read is None else read), path.name.rsplit(".", 1)[0]
    try:
        spec = TaskSpec.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, TaskSpec, _wrong_names(registry, content, stem))}") from None
    if spec.task != stem:
        raise UsageError(f"{path}: {listed(_wrong_names(registry, content, stem))}")
    return checked(registry, TaskFile(spec, path.parent if isinstance(path, Path) else None))


def _wrong_names(registry: Registry, content: Mapping[str, Any], stem: str) -> list[str]:
    """What is wrong with the names in a task file, whose other keys may be wrong, too."""
    name, source, metrics = (content.get(key) for key in ("task", "source", "metrics"))
    wrong = [f"write 'task: {stem}', or rename the file to {name}.yaml"] if name not in (None, stem) else []
    wrong += _absent(registry.metrics, metrics if isinstance(metrics, list) else ())
    return wrong + _absent(registry.sources, [source.get("kind")] if isinstance(source, dict) else ())


def _absent(known: Mapping[str, object], names: Iterable[object], first: UsageError | None = None) -> list[str]:
    """The messages for names that are not registered, each once, after the ``first``."""
    wrong = [] if first is None else [str(first)]
    for name in (name for name in names if isinstance(name, str)):
        try:
            known[name]
        except UsageError as error:
            wrong.append(str(error))
    return list(dict.fromkeys(wrong))


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
        if pattern in registry.task_files or pattern.endswith(ENDINGS):
            fitting = [find_task(registry, pattern)]
        else:
            tasks = all_tasks(registry).values()
            fitting = [task for task in tasks if pattern in task.spec.tag or fnmatchcase(task.spec.task, pattern)]
        if not fitting:
            raise _no_such_task(registry, pattern)
        for task in fitting:
            chosen.setdefault(task.spec.task, task)
    return chosen


def _no_such_task(registry: Registry, pattern: str) -> UsageError:
    if Path(pattern).exists():
        return UsageError(f"{pattern} is not a task file (.yaml); `ttmbench new task NAME` writes one to start from")
    everything = all_tasks(registry)
    tags = {tag for task in everything.values() for tag in task.spec.tag}
    return UsageError(unknown("task", pattern, [*everything, *tags], registry.broken))


def take_in(registry: Registry, tasks: Sequence[AnyTask]) -> dict[str, AnyTask]:
    """Tasks in memory by name; UsageError for an unknown metric, or a name that another task has."""
    named: dict[str, AnyTask] = {}
    for task in tasks:
        name = task.spec.task
        if name in registry.task_files or name in named:
            raise UsageError(f"two tasks are named '{name}'; give the one in memory another name")
        named[name] = checked(registry, task)
    return named


def checked(registry: Registry, task: AnyTask) -> AnyTask:
    """The task; UsageError unless its sources, metrics and schedules are registered, and its metrics fit its kind."""
    spec = task.spec
    try:
        for source in spec.sources if task.groups is None else ():
            registry.sources[source["kind"]]
        for settings in spec.ttm.values():
            registry.schedules[settings.get("schedule", "linear")]
        scopes = {name: registry.metrics[name].scope for name in spec.metrics}
    except UsageError as error:
        raise UsageError(f"task {spec.task}: {listed(_absent(registry.metrics, spec.metrics, error))}") from None
    if others := [name for name, scope in scopes.items() if scope not in SCOPES[spec.kind]]:
        raise UsageError(f"task {spec.task}: metric '{others[0]}' is not defined for tasks of kind {spec.kind}")
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
    fields, merged = dict(content), dict[str, object]()
    includes = fields.pop("include", [])
    for entry in includes if isinstance(includes, list) else [includes]:
        merged = _merge(merged, _included(path, entry, depth, read))
    return _merge(merged, fields)


class Include(FirstKey):
    """A task file of the same folder, and the keys of it that are not taken."""

    file: str
    without: tuple[str, ...] = ()


def _included(path: Traversable, entry: object, depth: int, read: AlreadyRead) -> dict[str, object]:
    """The fields that an entry of ``include`` adds."""
    try:
        include = Include.model_validate(entry)
    except ValidationError:
        forms = "a file name, {file: name, without: [keys]}, or a list of these"
        raise UsageError(f"{path}: 'include' must be {forms}, got {entry!r:.80}") from None
    name, parent = include.file, getattr(path, "parent", None)
    file = None if parent is None or set(name) & set("/\\") else parent / name
    if file is None or not name.endswith(ENDINGS) or not file.is_file():
        raise UsageError(f"{path}: 'include' names '{name}', which is not a file of the same folder")
    included = _read(file, depth + 1, read)
    if absent := [key for key in include.without if key not in included]:
        raise UsageError(f"{path}: 'include' leaves out '{absent[0]}', which {name} does not have")
    return {key: value for key, value in included.items() if key not in include.without}


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of both; neither is changed."""
    both = {key for key in below.keys() & above.keys() if isinstance(below[key], dict) and isinstance(above[key], dict)}
    return {**below, **above, **{key: _merge(below[key], above[key]) for key in both}}
