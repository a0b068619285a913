"""Images for the groups browser: from a task's data, read as its run did, and copied only where that is allowed.

No data, other data, or a licence that does not surely allow copies: then there are names, and the page says why.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from ttmbench.errors import DataError, TtmbenchError
from ttmbench.report.groups import GroupSet, load_again

if TYPE_CHECKING:
    from PIL.Image import Image

    from ttmbench.types import Exif, Group, ImageRef

Images = Literal["thumbnails", "links", "none"]
_WHERE = "; --include_path and --data_dir say where task files and data lie"
SIDE, QUALITY = 160, 78  # pixels of the longer side, and of JPEG
# Only what these words say in full: "MIT (captions); ..." speaks of captions alone.
COPIES_ALLOWED = frozenset(
    {
        *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "unlicense", "cc0-1.0", "cc0", "public domain"),
        *("cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-2.0", "cc-by-sa-3.0", "cc-by-sa-4.0"),
        *("odc-by", "pddl", "cdla-permissive-1.0", "cdla-permissive-2.0"),
    }
)


@dataclass(frozen=True)
class ThumbnailOptions:
    """How images come onto the page.

    Attributes:
        images: small copies, links to the files, or names alone.
        allowed: tasks whose images may be copied whatever their licence says.
        most: copies a task at most.
        data_dir: the data folder; by default that of this machine.
        include_path: folders of further task files; those that a run names are not looked into.
        page_folder: where the page goes: links start from there.
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
        task: name.
        images: name -> data URI or relative address.
        why: a sentence on what is there and what is not.
    """

    task: str
    images: dict[str, str] = field(default_factory=dict)
    why: str = ""


def copies_allowed(license_name: str, gated: bool) -> bool:
    """Whether a task file states, beyond doubt, that its images may be copied.

    >>> [copies_allowed(name, False) for name in ("CC BY 4.0", "MIT", "MIT (captions); images are COCO's", "")]
    [True, True, False, False]
    >>> copies_allowed("MIT", gated=True)
    False
    """
    return not gated and re.sub(r"[\s_]+", "-", license_name.strip().lower()) in {
        re.sub(r"\s+", "-", name) for name in COPIES_ALLOWED
    }


def thumbnails_for(sets: Sequence[GroupSet], options: ThumbnailOptions) -> Thumbnails:
    """The images of runs on one task's data.

    Args:
        sets: the groups, of one task and one fingerprint.
        options: what may be shown.

    Returns:
        Copies or links, or none, with the reason.
    """
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
            why = f"the data are not at hand here ({error}){_WHERE}"
        else:
            # The task file at hand may have been corrected since the run, or be another one.
            why = _doubt(task, spec.license, spec.gated, options) or ("" if groups else "no group was read")
    return Thumbnails(task, why=f"names only: {why}") if why else _collect(task, sets, groups, options)


def _doubt(task: str, license_name: str, gated: bool, options: ThumbnailOptions) -> str:
    """Why images may not be copied; empty if they surely may, or nothing is."""
    if options.images != "thumbnails" or task in options.allowed or copies_allowed(license_name, gated):
        return ""
    declared = f"its licence is stated as “{license_name}”" if license_name else "it states no licence"
    doubt = "its data are gated" if gated else declared
    return f"{doubt}, which does not surely allow copies (--allow_images {task})"


def _collect(task: str, sets: Sequence[GroupSet], groups: Mapping[str, Group], options: ThumbnailOptions) -> Thumbnails:
    found: dict[str, str] = {}
    broken, others, full, copies = set(), set(), False, options.images == "thumbnails"
    wanted: dict[str, tuple[list[str], list[str]]] = {}
    for one in sets:
        for group_id, captions, names, *_ in one.by_interest():
            wanted.setdefault(group_id, (captions, names))
    for group_id, (captions, names) in wanted.items():
        group = groups.get(group_id)
        if group is None or list(group.captions) != captions or [image.name for image in group.images] != names:
            others.add(group_id)
            continue
        for image in group.images:
            if image.name in found or image.name in broken:
                continue
            if copies and len(found) >= options.most:
                full = True
                continue
            try:
                found[image.name] = thumbnail(image.open(), image.exif) if copies else _link(image, options.page_folder)
            except (TtmbenchError, OSError, ValueError, SyntaxError):
                broken.add(image.name)
    detail = [f"{len(found)} {'small copies' if copies else 'links to the files'}" if found else "names only"]
    if others:
        detail.append(f"{len(others)} groups differ from the data at hand")
    if broken:
        detail.append(f"{len(broken)} images could not be {'read' if copies else 'linked: they are no files'}")
    if full:
        detail.append(f"no more than {options.most} (--max_images), groups that changed first")
    return Thumbnails(task, found, "; ".join(detail))


def _link(image: ImageRef, page_folder: Path) -> str:
    if image.file is None:
        raise ValueError(f"{image.name} is no file of its own")
    return quote(Path(os.path.relpath(image.file.resolve(), page_folder.resolve())).as_posix())


def thumbnail(image: Image, exif: Exif) -> str:
    """A small copy as a data URI, turned as the run read it, without metadata; transparent pixels become white."""
    from PIL import Image as Pillow
    from PIL import ImageOps

    small = (ImageOps.exif_transpose(image) if exif == "apply" else image).convert("RGBA")
    small.thumbnail((SIDE, SIDE), Pillow.Resampling.LANCZOS)
    paper = Pillow.new("RGBA", small.size, "white")
    paper.alpha_composite(small)
    content = io.BytesIO()
    paper.convert("RGB").save(content, "JPEG", quality=QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
