"""Images for the groups browser, copied only where the licence clearly permits it; else the page has names and why."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from PIL.Image import Image

from ttmbench._util.images import frames_of, side_by_side
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.report.groups import GroupSet, load_again
from ttmbench.types import Exif, Group

Images = Literal["thumbnails", "links", "none"]
_WHERE = "; --include_path and --data_dir say where task files and data lie"
SIDE, QUALITY = 160, 78  # pixels of the longer side, and of JPEG
_FRAMES = 4  # times the longer side, for a video of as many frames or more
# Matched in full: "MIT (captions); ..." is about captions alone.
COPIES_ALLOWED = frozenset(
    {
        *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "unlicense", "cc0-1.0", "cc0", "public domain"),
        *("cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-2.0", "cc-by-sa-3.0", "cc-by-sa-4.0"),
        *("odc-by", "pddl", "cdla-permissive-1.0", "cdla-permissive-2.0"),
    }
)


@dataclass(frozen=True)
class ThumbnailOptions:
    """How images are shown.

    Attributes:
        images: small copies, links to the files, or names.
        allowed: tasks whose images may be copied regardless of their licence.
        most: maximum number of copies per task.
        data_dir: the data folder; None for the default one.
        include_path: folders with additional task files; those named by a run are not read.
        page_folder: of the page, to which links are relative.
    """

    images: Images = "thumbnails"
    allowed: frozenset[str] = frozenset()
    most: int = 2000
    data_dir: str | None = None
    include_path: tuple[str, ...] = ()
    page_folder: Path = Path()


@dataclass(frozen=True)
class Thumbnails:
    """The images of one task's data.

    Attributes:
        task: its name.
        images: name -> data URI or relative address.
        why: what is shown, and what is not and why.
    """

    task: str
    images: dict[str, str] = field(default_factory=dict)
    why: str = ""


def copies_allowed(license_name: str, gated: bool) -> bool:
    """Whether a task file clearly states that its images may be copied.

    >>> [copies_allowed(name, False) for name in ("CC BY 4.0", "MIT", "MIT (captions); images are COCO's", "")]
    [True, True, False, False]
    >>> copies_allowed("MIT", gated=True)
    False
    """
    return not gated and re.sub(r"[\s_]+", "-", license_name.strip().lower()) in {
        re.sub(r"\s+", "-", name) for name in COPIES_ALLOWED
    }


def thumbnails_for(sets: Sequence[GroupSet], options: ThumbnailOptions) -> Thumbnails:
    """Copies of or links to the images of runs on the same data of a task, or the reason why there are none."""
    run, task = sets[0].run, sets[0].task
    if options.images == "none":
        return Thumbnails(task, why="names only, as asked for (--images none)")
    config = run.document.configs.get(task, {})
    why = _doubt(task, str(config.get("license", "")), bool(config.get("gated", False)), options)
    groups: Mapping[str, Group] = {}
    if not why:
        try:
            spec, groups = load_again(run, task, options.data_dir, options.include_path)
        except DataError as error:
            why = f"the data are not available here ({error}){_WHERE}"
        else:
            # The task file at hand may have been corrected since the run, or be another one.
            why = _doubt(task, spec.license, spec.gated, options) or ("" if groups else "no group was read")
    return Thumbnails(task, why=f"names only: {why}") if why else _collect(task, sets, groups, options)


def _doubt(task: str, license_name: str, gated: bool, options: ThumbnailOptions) -> str:
    """Why images may not be copied; empty if they may, or none are."""
    if options.images != "thumbnails" or task in options.allowed or copies_allowed(license_name, gated):
        return ""
    declared = f"its licence is stated as “{license_name}”" if license_name else "it states no licence"
    doubt = "its data are gated" if gated else declared
    return f"{doubt}, which does not surely allow copies (--allow_images {task})"


def _collect(task: str, sets: Sequence[GroupSet], groups: Mapping[str, Group], options: ThumbnailOptions) -> Thumbnails:
    images: dict[str, str] = {}
    broken, different, is_full, copies = set(), set(), False, options.images == "thumbnails"
    shown: dict[str, tuple[list[str], list[str]]] = {}
    for group_set in sets:
        for group_id, captions, names, *_ in group_set.by_interest():
            shown.setdefault(group_id, (captions, names))
    for group_id, (captions, names) in shown.items():
        group = groups.get(group_id)
        if group is None or list(group.captions) != captions or [image.name for image in group.images] != names:
            different.add(group_id)
            continue
        for image in group.images:
            if image.name in images or image.name in broken:
                continue
            if copies and len(images) >= options.most:
                is_full = True
                continue
            try:
                if copies:
                    images[image.name] = thumbnail(image.open(), image.exif)
                elif image.file is None:
                    broken.add(image.name)
                else:
                    link = Path(os.path.relpath(image.file.resolve(), options.page_folder.resolve()))
                    images[image.name] = quote(link.as_posix())
            except (TtmbenchError, OSError, ValueError, SyntaxError):
                broken.add(image.name)
    detail = [f"{len(images)} {'small copies' if copies else 'links to the files'}" if images else "names only"]
    if different:
        detail.append(f"{len(different)} groups differ from the local data")
    if broken:
        detail.append(f"{len(broken)} images could not be {'read' if copies else 'linked: they are not files'}")
    if is_full:
        detail.append(f"no more than {options.most} (--max_images), groups that changed first")
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
    small.thumbnail((SIDE * min(len(frames), _FRAMES), SIDE), Pillow.Resampling.LANCZOS)
    paper = Pillow.new("RGBA", small.size, "white")
    paper.alpha_composite(small)
    content = io.BytesIO()
    paper.convert("RGB").save(content, "JPEG", quality=QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
