"""Results files of a report, and the groups of their samples as compact lists for the page.

Damaged files are listed and skipped; only an empty folder is an error.

Images of groups are copied only where the licence clearly permits it, and linked where they lie in the folder of a
task without a licence, which is the user's own; else the page has names and why.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from PIL.Image import Image

from ttmbench._util.file_io import Unreadable, read_json
from ttmbench._util.images import frames_of, side_by_side
from ttmbench.config import groups_of
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskSpec, find_task
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.results.numbers import RAW, TTM, column_of
from ttmbench.results.reader import ResultsFile, read_files, sample_lines
from ttmbench.types import Exif, Group

HEADLINE = "group_match"


def gather(given: Path) -> tuple[list[ResultsFile], dict[str, str]]:
    """Every results document of a folder, searched recursively, or one document; and the files that are skipped: why.

    Runs are sorted by model and path. UsageError if the path does not exist, or has no JSON file.
    """
    if not given.exists():
        raise UsageError(f"{given} does not exist; give a results file, or a directory with some (--output_path)")
    folder = given if given.is_dir() else given.parent
    found, damaged = read_files([given], logs=True)
    if not found and not damaged:
        raise UsageError(f"{given} has no results document; runs write them with --output_path {given}")
    skipped = {path.relative_to(folder).as_posix(): why for path, why in damaged.items() if not is_something_else(path)}
    found.sort(key=lambda run: (run.model, str(run.path)))
    runs = [replace(run, index=index) for index, run in enumerate(found, start=1)]
    for run in runs:
        skipped |= {(Path(run.file).parent / file).as_posix(): why for file, why in run.checked[1].items()}
    return runs, skipped


def is_something_else(path: Path) -> bool:
    """Whether a file is a complete document of another kind: an analysis, a model card, settings."""
    if path.name.startswith("results_"):
        return False
    try:
        content = read_json(path)
    except Unreadable:
        return False
    return not (isinstance(content, dict) and "results" in content)


Line = Mapping[str, Any]
"""A samples line."""
Json = Any
"""A JSON value for the page."""
_DIGITS = 5  # of scores and margins on the page


@dataclass(frozen=True)
class GroupSet:
    """The groups of one task of a run."""

    run: ResultsFile  # the run
    task: str  # its name
    # For the page: ``metrics``, ``methods`` (name, words, seeds), ``tags``, and ``groups``, each
    # ``[id, captions, images, tags, methods]``, those first that changed, then incorrect ones; a method is null or a
    # list over seeds of ``[scores, matching, tie, margin, metrics, answers]``.
    data: dict[str, Json]


def read_groups(run: ResultsFile, task: str, path: Path) -> GroupSet:
    """The groups in a samples file; DataError with its number for a line that is not a samples line."""
    methods: dict[str, dict[int, int | None]] = {}
    metrics, tags = dict[str, None](), dict[str, None]()
    groups: dict[str, tuple[Line, dict[str, dict[int, list[Json]]]]] = {}
    line: Line
    for number, line in sample_lines(path):
        try:
            name, seed = str(line["method"]), int(line.get("seed_index", 0))
            methods.setdefault(name, {})[seed] = line.get("seed")
            metrics |= dict.fromkeys(line["metrics"])
            tags |= dict.fromkeys(line.get("tags", {}))
            groups.setdefault(str(line["group_id"]), (line, {}))[1].setdefault(name, {})[seed] = _result(line)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path}: line {number} is not a samples line of ttmbench") from None
    compact = []
    for group_id, (line, results) in groups.items():
        for rows in results.values():
            for row in rows.values():
                row[4] = [row[4].get(metric) for metric in metrics]
        texts = [[str(text) for text in line.get(key, [])] for key in ("captions", "images")]
        values = [None if tag not in line.get("tags", {}) else str(line["tags"][tag]) for tag in tags]
        per_method = [
            [results[name].get(seed) for seed in sorted(seeds)] if name in results else None
            for name, seeds in methods.items()
        ]
        compact.append([group_id, *texts, values, per_method])
    described = [
        {"name": name, "words": column_of(name).name, "seeds": [seeds[index] for index in sorted(seeds)]}
        for name, seeds in methods.items()
    ]
    names, metric = list(methods), [*metrics].index(HEADLINE) if HEADLINE in metrics else 0
    compact.sort(key=lambda group: _interest(group, names, metric))
    return GroupSet(run, task, {"metrics": [*metrics], "methods": described, "tags": [*tags], "groups": compact})


def _interest(group: list[Json], names: list[str], metric: int) -> int:
    """0 for a group that changed from raw to TTM, else 1 for an incorrect one, and 2 for a correct one."""
    means: list[float | None] = []
    for name in (RAW, TTM):
        rows = group[4][names.index(name)] if name in names else None
        values = [row[4][metric] for row in rows or () if row and row[4] and row[4][metric] is not None]
        means.append(sum(values) / len(values) if values else None)
    before, after = means
    if before is None or after is None or before == after:
        return 2 if (before if after is None else after) == 1 else 1
    return 0


def _result(line: Line) -> list[Json]:
    result: list[Json] = [
        [[_short(score) for score in row] for row in line["scores"]] if "scores" in line else None,
        [_indices(captions) for captions in line["matching"]] if "matching" in line else None,
        1 if line.get("tie") else 0,
        _short(line.get("margin")),
        {metric: _short(value) for metric, value in line["metrics"].items()},
    ]
    asked = line.get("answers", ())
    answers = [[str(one["question"]), str(one["prompt"]), one["answer"], bool(one["right"])] for one in asked]
    return [*result, answers] if "answers" in line else result


def _indices(captions: Json) -> int | list[int] | None:
    """The caption or captions that a matching gives an image; None where it gives none."""
    if captions is None:
        return None
    return [int(caption) for caption in captions] if isinstance(captions, list) else int(captions)


def _short(value: object) -> float | int | None:
    """A number with few digits, as an integer if it is one."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is not a number")
    if value - value != 0:
        raise ValueError(f"{value} is NaN or infinite")
    short = float(f"{value + 0:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


Images = Literal["thumbnails", "none"]
_SIDE, _QUALITY = 160, 78  # pixels of the longer side, and of JPEG
_FRAMES = 4  # times the longer side, for a video of as many frames or more
# Matched in full: "MIT (captions); ..." is about captions alone.
_COPIES_ALLOWED = frozenset(
    {
        *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "unlicense", "cc0-1.0", "cc0", "public-domain"),
        *("cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-2.0", "cc-by-sa-3.0", "cc-by-sa-4.0"),
        *("odc-by", "pddl", "cdla-permissive-1.0", "cdla-permissive-2.0"),
    }
)


@dataclass(frozen=True)
class ThumbnailOptions:
    """How images are shown."""

    images: Images = "thumbnails"  # small copies, or names
    allowed: frozenset[str] = frozenset()  # tasks whose images may be copied regardless of their licence
    most: int = 2000  # maximum number of copies per task
    data_dir: str | None = None  # the data folder; None for the default one
    include_path: tuple[str, ...] = ()  # folders with additional task files; those named by a run are not read
    page: str = "."  # folder of the page, from which images are linked


@dataclass(frozen=True)
class Thumbnails:
    """The images of one task's data."""

    task: str  # its name
    images: dict[str, str] = field(default_factory=dict)  # name -> data URI
    why: str = ""  # what is shown, and what is not and why


def copies_allowed(license_name: str, gated: bool) -> bool:
    """Whether a task file clearly states that its images may be copied.

    >>> [copies_allowed(name, False) for name in ("CC BY 4.0", "MIT", "MIT (captions); images are COCO's", "")]
    [True, True, False, False]
    >>> copies_allowed("MIT", gated=True)
    False
    """
    return not gated and re.sub(r"[\s_]+", "-", license_name.strip().lower()) in _COPIES_ALLOWED


def thumbnails_for(sets: Sequence[GroupSet], options: ThumbnailOptions) -> Thumbnails:
    """Copies of the images of runs on the same data of a task, or the reason why there are none."""
    run, task = sets[0].run, sets[0].task
    if options.images == "none":
        return Thumbnails(task, why="names only, as asked for (--images none)")
    config = run.document.configs.get(task, {})
    stated = str(config.get("license", "")), bool(config.get("gated", False))
    try:
        if stated != ("", False):
            _check_licence(task, *stated, options)
        spec, groups = _load_again(run, task, options)
        own = spec.source["kind"] == "folder" and stated == (spec.license, spec.gated) == ("", False)
        linked = own and task not in options.allowed
        if not linked:  # the task file at hand may have been corrected since the run, or be another one
            _check_licence(task, spec.license, spec.gated, options)
    except DataError as error:
        return Thumbnails(task, why=f"names only: {error}")
    return _copies(task, sets, groups, options, linked)


def _check_licence(task: str, license_name: str, gated: bool, options: ThumbnailOptions) -> None:
    """DataError with why images may not be copied."""
    if task not in options.allowed and not copies_allowed(license_name, gated):
        declared = f"its licence is stated as “{license_name}”" if license_name else "no licence in the task file"
        doubt = "its data are gated" if gated else declared
        raise DataError(f"{doubt}, so images are not copied (--allow_images {task})")


def _load_again(run: ResultsFile, task: str, options: ThumbnailOptions) -> tuple[TaskSpec, dict[str, Group]]:
    """The task as its file is now, and its groups by id, with the run's numeric source options, template and limit.

    A results document may come from anyone, so none of its paths is followed: the task must be registered or in
    ``include_path``, and its files in ``data_dir``. DataError with why the data are not available.
    """
    from ttmbench.plugins.registry import build_registry

    config = run.document.config
    try:
        if task.endswith((".yaml", ".yml")):
            raise DataError(f"'{task}' is a file; give its folder as --include_path")
        registry = build_registry(list({Path(path).resolve(): path for path in options.include_path}.values()))
        numbers = {
            name: value
            for name, value in (config.get("task_args") or {}).items()
            if isinstance(value, int | float) or name == "caption_template"
        }
        source = find_task(registry, task).with_source(numbers)
        limit = config.get("limit") if config.get("samples") is None else None
        wanted = groups_of(float(limit), source.spec.group.n_groups) if limit else None
        groups = load_task_data(registry, source, wanted, offline=True, data_dir=options.data_dir).groups
    except (TtmbenchError, OSError, ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
        raise DataError(
            f"the data are not available here ({' '.join(str(error).split())}); --include_path and --data_dir say "
            "where task files and data lie"
        ) from None
    by_id = {group.group_id: group for group in groups}
    if source.spec.kind == "retrieval":  # a caption is a query with a samples line
        for group in groups:
            for number, caption in enumerate(group.captions):
                by_id.setdefault(f"{group.group_id}/{number}", replace(group, captions=(caption,)))
    return source.spec, by_id


def _copies(
    task: str, sets: Sequence[GroupSet], groups: Mapping[str, Group], options: ThumbnailOptions, linked: bool
) -> Thumbnails:
    images: dict[str, str] = {}
    broken, different, is_full = set(), set(), False
    shown: dict[str, tuple[list[str], list[str]]] = {}
    for group_set in sets:
        for group_id, captions, names, *_ in group_set.data["groups"]:
            shown.setdefault(group_id, (captions, names))
    for group_id, (captions, names) in shown.items():
        group = groups.get(group_id)
        if group is None or list(group.captions) != captions or [image.name for image in group.images] != names:
            different.add(group_id)
            continue
        for image in group.images:
            if image.name in images or image.name in broken:
                continue
            if len(images) >= options.most:
                is_full = True
                continue
            try:
                if not linked:
                    images[image.name] = thumbnail(image.open(), image.exif)
                elif image.file is not None:
                    images[image.name] = quote(Path(os.path.relpath(image.file, options.page)).as_posix())
            except (TtmbenchError, OSError, ValueError, SyntaxError):
                broken.add(image.name)
    how = "images, linked: they are shown on this machine alone" if linked else "small copies"
    detail = [f"{len(images)} {how}" if images else "names only"]
    detail += [f"{len(different)} groups differ from the local data"] if different else []
    detail += [f"{len(broken)} images could not be read"] if broken else []
    detail += [f"no more than {options.most} (--max_images), groups that changed first"] if is_full else []
    return Thumbnails(task, images, "; ".join(detail))


def thumbnail(image: Image, exif: Exif) -> str:
    """A small JPEG as a data URI, oriented as the run read it, without metadata, transparent pixels in white.

    The frames of a video are beside one another.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    frames = frames_of(image)
    image = side_by_side(frames) if len(frames) > 1 else image
    small = (ImageOps.exif_transpose(image) if exif == "apply" else image).convert("RGBA")
    small.thumbnail((_SIDE * min(len(frames), _FRAMES), _SIDE), Pillow.Resampling.LANCZOS)
    paper = Pillow.new("RGBA", small.size, "white")
    paper.alpha_composite(small)
    content = io.BytesIO()
    paper.convert("RGB").save(content, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
