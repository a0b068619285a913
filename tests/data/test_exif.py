"""EXIF orientation: followed for user's tasks, and as the paper's authors did for theirs; told apart wherever kept."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from support.task_data import changed, find, load, write

from ttmbench._util.images import open_image
from ttmbench.data.task_file import all_tasks
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import build_registry
from ttmbench.report.load import thumbnail
from ttmbench.scoring.inputs import open_upright
from ttmbench.types import Group, ImageRef

XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="%d"/></rdf:RDF></x:xmpmeta>'
)


def turned(path: Path | None = None) -> bytes:
    """A photograph of 30x20 pixels, red on its left, with EXIF data that turn it by a quarter."""
    image = Image.new("RGB", (30, 20), "blue")
    image.paste("red", (0, 0, 15, 20))
    exif = Image.Exif()
    exif[274] = 6
    stream = io.BytesIO()
    image.save(stream, "JPEG", exif=exif, quality=95)
    if path is not None:
        path.write_bytes(stream.getvalue())
    return stream.getvalue()


def read_in_folder(folder: Path, **source: object) -> Group:
    spec = yaml.safe_load((folder / "mine.yaml").read_text(encoding="utf-8"))
    spec["source"] |= source
    (folder / "mine.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    return load(folder / "mine.yaml").groups[0]


def test_a_users_task_turns_photographs_upright_unless_told_otherwise(folder_task):
    folder = folder_task()
    turned(folder / "images" / "0_0.png")
    upright = open_upright(read_in_folder(folder).images[0], "g0")
    ignored = open_upright(read_in_folder(folder, exif="ignore").images[0], "g0")
    assert upright.size == (20, 30) and upright.getpixel((10, 2))[0] > 200 > 50 > upright.getpixel((10, 27))[0]
    assert ignored.size == (30, 20) and ignored.getpixel((2, 10))[0] > 200 > 50 > ignored.getpixel((27, 10))[0]
    with pytest.raises(UsageError, match="'exif': must be 'apply' or 'ignore'"):
        read_in_folder(folder, exif="follow")


TIFFS = [{"compression": kind} for kind in (None, "tiff_lzw", "tiff_adobe_deflate", "jpeg")]
STORED = [("JPEG", {"quality": 95}), ("PNG", {}), ("WEBP", {"lossless": True}), *(("TIFF", how) for how in TIFFS)]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("kind", "options"), STORED)
@pytest.mark.parametrize("place", ["exif", "xmp"])
def test_every_format_is_read_as_stored_or_upright(kind, options, orientation, place):
    def read(how, **more):
        stream = io.BytesIO()
        image.save(stream, kind, **options, **more)
        ref = ImageRef("x", lambda: open_image(io.BytesIO(stream.getvalue())), exif=how)
        return np.asarray(open_upright(ref, "g0"))

    image = Image.effect_noise((24, 16), 90).convert("RGB")
    plain, exif = read("ignore"), Image.Exif()
    if place == "exif":
        exif[274] = orientation
        metadata = {"exif": exif}
    elif kind == "TIFF":
        metadata = {"tiffinfo": {700: XMP % orientation}}
    elif kind == "PNG":
        chunks = PngInfo()
        chunks.add_itxt("XML:com.adobe.xmp", (XMP % orientation).decode())
        metadata = {"pnginfo": chunks}
    else:
        metadata = {"xmp": XMP % orientation}
    turns = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"}
    turns |= {6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"}
    stored = Image.fromarray(plain)
    upright = stored.transpose(Image.Transpose[turns[orientation]]) if orientation in turns else stored
    by_pillow = upright if kind == "TIFF" else stored  # which turns a TIFF when it loads it
    assert np.array_equal(read("ignore", **metadata), np.asarray(by_pillow))
    assert np.array_equal(read("apply", **metadata), np.asarray(upright))


def test_tasks_read_as_their_authors_did():
    """They open files by Pillow alone; where the library datasets gives images, it turns them."""
    for name, task in all_tasks(build_registry()).items():
        if name.startswith("shapes_") or task.spec.video is not None:
            continue
        turned_by_the_library = ("winoground", "colorswap", "bivlc", "rocketscience", "vismin")
        expected = "apply" if name.startswith(turned_by_the_library) else "ignore"
        source = task.spec.source
        for one in source.get("of", [source]):
            assert one["exif"] == expected, name


@pytest.mark.filterwarnings("default")
def test_a_mirror_gives_the_images_that_the_files_give(tmp_path, monkeypatch):
    """The mirror's cells hold the files' bytes; decoding by the library datasets would turn them."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    content = turned()
    write(tmp_path / "data" / "coco" / "val2017" / "1.jpg", content)
    rows = {"0": {"filename": "1.jpg", "caption": "yes", "negative_caption": "no"}}
    write(tmp_path / "data" / "sugarcrepe" / "swap_att.json", rows)
    columns = {"image": [{"bytes": content, "path": None}], "tested_labels": [["yes", "no"]]}
    table = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    assert table[0]["image"].size == (20, 30), "datasets turns it"
    (tmp_path / "mirror" / "data").mkdir(parents=True)
    table.to_parquet(tmp_path / "mirror" / "data" / "test-00000-of-00001.parquet")
    files, mirror = find("sugarcrepe_swap_att").spec.source["of"]
    sizes = []
    for source in (files, {**mirror, "path": str(tmp_path / "mirror")}):
        loaded = load(changed("sugarcrepe_swap_att", {"of": [source]}, n_groups=1), tmp_path / "data")
        assert loaded.source["exif"] == "ignore"
        sizes.append(open_upright(loaded.groups[0].images[0], "0").size)
    assert sizes == [(30, 20), (30, 20)]


def test_pages_show_what_the_model_saw():
    shown = []
    for exif in ("apply", "ignore"):
        data = thumbnail(Image.open(io.BytesIO(turned())), exif)
        shown.append(Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))).size)
    assert shown == [(20, 30), (30, 20)]
