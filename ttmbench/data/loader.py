"""Reads a task's data through its source, checks them, and lists what they need on this machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ttmbench._util.console import progress_bar
from ttmbench._util.file_io import file_digest, limit, raised_by
from ttmbench._util.third_party import foreign_errors
from ttmbench.config import RunConfig, groups_of
from ttmbench.data.availability import DataLocation, DataNeed
from ttmbench.data.paths import below, data_folder, is_local
from ttmbench.data.task_file import Columns, Defect, TaskFile, TaskSpec
from ttmbench.errors import DataError, OutOfReachError
from ttmbench.plugins.registry import BUILTIN, Registry, load_target
from ttmbench.types import Group, GroupShape, ImageRef, Loaded, SourceRequest


def load_task_data(
    registry: Registry,
    task: TaskFile,
    limit: float | None = None,
    offline: bool = False,
    data_dir: str | Path | None = None,
    samples: Set[str] | None = None,
) -> Loaded:
    """The groups of a task in its source's order, of the right number and shape, and where they came from.

    No more than ``limit`` groups (below 1, a fraction of them), of those whose ids are in ``samples`` if given;
    ``offline`` never touches the network. DataError for data out of reach, or not what the task file says, or without
    a group of ``samples``; UsageError if the source is unknown or its options are wrong.
    """
    spec, folder = task.spec, data_folder(data_dir, is_read=True)
    asked = groups_of(limit, spec.group.n_groups) if samples is None else None
    if task.groups is not None:  # which were checked when the task was made
        loaded = Loaded(list(task.groups[:asked]), dict(spec.source))
    else:
        request = replace(_request(registry, task, folder), limit=asked, offline=offline)
        try:
            loaded = _read_source(registry, spec.source, request)
        except OutOfReachError as error:
            raise _with_advice(error, spec) from error
        loaded = finished(spec, loaded, folder)
        check_groups(spec, loaded.groups, asked, len(loaded.source.get("coverage", {}).get("missing", ())))
    groups = loaded.groups
    if samples is not None:
        groups = [group for group in groups if group.group_id in samples]
        if absent := samples - {group.group_id for group in groups}:
            raise DataError(f"task '{spec.task}' has no group {min(absent)} (--samples)")
    return replace(loaded, groups=groups[: groups_of(limit, len(groups)) if asked is None else asked])


def _with_advice(error: OutOfReachError, spec: TaskSpec) -> OutOfReachError:
    """The error with what a user can do about it."""
    text, path = str(error), str(spec.source.get("path"))
    page = f"https://huggingface.co/{'' if spec.source.get('repo_type') == 'model' else 'datasets/'}{path}"
    if not ("gated" in text or "ttmbench download" in text or is_local(path)):
        text += f"; `ttmbench download {spec.task}` fetches what it can"
    if spec.gated and "path" in spec.source and page not in text:
        text += f". It is gated: before the first run accept its terms at {page} and set HF_TOKEN"
    return OutOfReachError(text)


def data_locations(registry: Registry, task: TaskFile, data_dir: Path) -> tuple[list[DataLocation], list[DataNeed]]:
    """The locations of a task's data in the order in which they are tried, and its files of further tags.

    Nothing is fetched. UsageError if the source is unknown or its options are wrong.
    """
    from ttmbench.data.fetch import data_file

    tags = [data_file(data_dir, tag.file, tag.get) for tag in task.spec.group.tag_files.values()]
    return _locations(registry, task.spec.source, _request(registry, task, data_dir)), tags


def reach_data(
    registry: Registry, task: TaskFile, config: RunConfig, fetch: bool = True
) -> tuple[DataLocation | None, int | None]:
    """Where a run finds a task's data, and None or, without ``fetch``, the bytes that it would fetch (-1: unknown).

    Errors as of `load_task_data` for data that a run cannot have, or only by ``ttmbench download``.
    """
    if task.groups is not None:
        return None, None
    places = _locations(registry, task.spec.source, _request(registry, task, data_folder(config.data_dir)))
    lacking: list[tuple[DataLocation, list[DataNeed]]] = []
    for place in places:
        needs = [need for need in place.needs or () if need.missing() is not None]
        if not needs:
            return place, None
        lacking.append((place, needs))
    if not fetch and not config.offline and (found := _fetched_by_a_run(lacking)) is not None:
        return found
    load_task_data(registry, task, config.limit, config.offline or not fetch, config.data_dir)
    return places[0], None


def _fetched_by_a_run(lacking: list[tuple[DataLocation, list[DataNeed]]]) -> tuple[DataLocation, int] | None:
    """The first location of which a run itself fetches all that it lacks, and how many bytes (-1: unknown)."""
    for place, needs in lacking:
        try:
            sizes = [need.size() for need in needs if need.in_run]
        except OutOfReachError:  # where there are other locations, the run's message names each
            if len(lacking) == 1:
                raise
            continue
        if len(sizes) == len(needs):
            return place, -1 if None in sizes else sum(size or 0 for size in sizes)
    return None


def _request(registry: Registry, task: TaskFile, data_dir: Path) -> SourceRequest:
    spec = task.spec
    columns = {key: getattr(spec.group, key) for key in Columns.model_fields if key != "label"}
    if spec.group.label is not None:  # sources read the label of an image as its caption
        columns["captions"] = [spec.group.label]
    return SourceRequest(
        options={},
        columns=columns,
        shape=spec.shape if spec.kind == "groups" else GroupShape(1, 2),
        n_groups=spec.group.n_groups,
        folder=task.folder,
        data_dir=data_dir,
        kind=spec.kind,
        read=partial(_read_source, registry),
        locations=partial(_locations, registry),
    )


def _locations(registry: Registry, source: Mapping[str, object], request: SourceRequest) -> list[DataLocation]:
    """The locations of one source mapping; sources that combine others call this for each of them."""
    spec = registry.sources[str(source.get("kind"))]
    if not spec.needs:
        return [DataLocation(f"source '{spec.kind}'", None)]
    options = {key: value for key, value in source.items() if key != "kind"}
    locations: list[DataLocation] = load_target(spec.needs)(replace(request, options=options))
    return locations


def _read_source(registry: Registry, source: Mapping[str, object], request: SourceRequest) -> Loaded:
    """The data of one source mapping; sources that combine others call this for each of them."""
    spec, plugin = registry.sources[str(source.get("kind"))], registry.sources.plugins[str(source.get("kind"))]
    request = replace(request, options={key: value for key, value in source.items() if key != "kind"})
    reader, what = load_target(spec.target), f"source '{spec.kind}' of plugin '{plugin}'"
    with foreign_errors(what, DataError):
        result = reader(request)
        loaded = result if isinstance(result, Loaded) else Loaded(list(result))
    groups = loaded.groups if plugin == BUILTIN else [_of_plugin(group, what) for group in loaded.groups]
    # The record of a reader that names its kind is complete; others get the options.
    return Loaded(groups, loaded.source if "kind" in loaded.source else {**source, **loaded.source})


def _of_plugin(group: object, what: str) -> Group:
    """A group whose images are known by their pixels; DataError if a plugin gave something else."""
    if not isinstance(group, Group):
        raise DataError(f"{what} gave a {type(group).__name__} in place of a group")
    return replace(group, images=tuple(replace(image, of_plugin=True) for image in group.images))


def finished(spec: TaskSpec, loaded: Loaded, data_dir: Path) -> Loaded:
    """Groups with captions in the task's template and with its further tags, which the record then states.

    A file of tags in the data folder is a JSON object, group id -> tag or list of tags; a missing one adds nothing. The
    record has the digest of each file, or None. DataError if a file is wrong.
    """
    record, files, template = dict(loaded.source), dict[str, dict[str, str]](), spec.caption_template
    for tag, stated in spec.group.tag_files.items():
        file = below(data_dir, stated.file, "group.tag_files")
        found = {"file": stated.file, "sha256": file_digest(file)} if file.is_file() else None
        record["tag_files"] = {**record.get("tag_files", {}), tag: found}
        files |= {tag: _tags_in(file)} if found else {}
    record |= ({"caption_template": template} if template else {}) | ({"video": dict(spec.video)} if spec.video else {})
    groups = []
    for group in loaded.groups:
        tags = {tag: of.get(group.group_id, "") for tag, of in files.items()}
        captions = tuple(template.replace("{}", text) for text in group.captions) if template else group.captions
        groups.append(replace(group, captions=captions, tags={**spec.group.constant_tags, **group.tags, **tags}))
    return Loaded(groups, record)


def _tags_in(file: Path) -> dict[str, str]:
    """Group id -> tags joined by a comma."""
    from ttmbench.data.rows import read_json

    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file}: expected an object of group ids, got {type(content).__name__}")
    tags = {}
    for group_id, value in content.items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in values):
            raise DataError(f"{file}: the tags of group {group_id} must be texts, got {value!r:.80}")
        tags[group_id] = ", ".join(values)
    return tags


def check_count(spec: TaskSpec, found: int, what: str, asked: int | None = None) -> None:
    """DataError unless there are as many groups as were asked for, else as the task file states."""
    wanted = spec.group.n_groups if asked is None else asked
    if wanted is not None and found != wanted:
        why = spec.group.wrong_sizes.get(found)
        raise DataError(
            f"{what} has {found} groups, but task '{spec.task}' (version {spec.version}) has {wanted}"
            + (f": {why}" if why else "")
        )


def check_groups(spec: TaskSpec, groups: Sequence[Group], asked: int | None = None, left_out: int = 0) -> None:
    """DataError for the first wrong number, shape, caption or id of a task's groups.

    ``asked``: the source was asked for no more groups than this; ``left_out``: how many groups it skipped.
    """
    task, stated = f"task '{spec.task}'", spec.group
    whole = asked is None or (stated.n_groups is not None and asked >= stated.n_groups)
    if whole:
        check_count(spec, len(groups) + left_out, f"the data of {task}")
    if not groups:
        raise DataError(f"{task}: the source gave no group")
    if whole and not left_out:
        total = sum(len(group.captions) for group in groups)
        if total != (stated.n_captions or total):
            raise DataError(f"{task} (version {spec.version}) has {stated.n_captions} captions, its data have {total}")
        for name, mean in spec.means.items():
            if (problem := mean.problem(groups)) is not None:
                raise DataError(f"{task}: means.{name} {problem}")
    most = limit("caption_characters")
    for group in groups:
        where = f"{task}: group {group.group_id!r:.80}"
        for text in (group.group_id, *group.captions, *(image.name for image in group.images)):
            if not isinstance(text, str) or len(text) > most or re.search("[\0\ud800-\udfff]", text):
                raise DataError(f"{where}: {text!r:.80} {_why_unusable(text, most)}")
        images, captions = len(group.images), len(group.captions)
        wanted = {"groups": stated.shape, "retrieval": (1, captions or 1), "classification": (1, 1)}[spec.kind]
        if (images, captions) != wanted:
            says = f"the task says {spec.shape}" if stated.shape else f"{spec.kind} needs one image and its text"
            raise DataError(f"{where} is {images}x{captions}, {says}")
        if not all(caption.strip() for caption in group.captions):
            raise DataError(f"{where} has an empty caption")
    if repeated := [name for name, count in Counter(group.group_id for group in groups).items() if count > 1]:
        raise DataError(f"{task}: group id {repeated[0]} is given to several groups")


def _why_unusable(text: object, most: int) -> str:
    if not isinstance(text, str):
        return f"is {type(text).__name__}, not a text"
    if len(text) > most:
        return f"has {len(text)} characters, more than {most}; {raised_by('caption_characters')}"
    return "holds a null character or half a surrogate pair"


@dataclass
class DataReport:
    """The result of `audit_groups`: number of distinct images, problems that make numbers wrong, and notes."""

    images: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_KNOWN: dict[Defect, str] = {
    "equal_captions": "have a caption twice",
    "equal_images": "have an image twice",
    "equal_groups": "are the same as an earlier one",
}


def audit_groups(spec: TaskSpec, groups: Sequence[Group], digest_of: Callable[[ImageRef, str], str]) -> DataReport:
    """Decodes every image and looks for groups that can only tie or count twice.

    ``digest_of``: (image, group id) -> digest of its decoded content.
    """
    report, known = DataReport(), Counter[Defect]()
    digests: dict[str, str | None] = {}  # None for an image that cannot be decoded
    seen: dict[tuple[tuple[str | None, ...], tuple[str, ...]], str] = {}
    for group in progress_bar(len(groups), "checking", "groups", groups):
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
    """Number of values other than None that are equal to an earlier one."""
    present = [value for value in values if value is not None]
    return len(present) - len(set(present))
