"""Archives, task files and pickles made to do harm: each is refused or contained, as the command line shows it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from support.damaged_tars import DAMAGE, damaged, end_as
from support.task_data import encoded, run, tar_of, task_file, write

IMAGES = {f"val/{n}.png": encoded(size=(8, 8 + n)) for n in range(3)}
ROWS = [{"image": f"{n}.png", "good": f"{n} dogs", "bad": f"{n} cats"} for n in range(3)]


@pytest.fixture
def fetch(site, tmp_path, capsys):
    """Downloads a task whose images come in an archive: whether that works, and what is said; nothing gets out."""

    def fetch(archive: bytes, **how: object) -> tuple[bool, str]:
        get = {"mine/images": {"url": site.put("/images.archive", archive), "unpack": True, **how}}
        source = {"kind": "annotations", "file": "mine/rows.json", "images": "mine/images", "get": get}
        group = {"shape": [1, 2], "images": ["image"], "captions": ["good", "bad"]}
        outer = tmp_path / "outer"
        write(outer / "data" / "mine" / "rows.json", json.dumps(ROWS))
        path = task_file(tmp_path, source, group)
        code, out, err = run(capsys, "download", path, "--data_dir", outer / "data")
        assert "Traceback" not in err and code in (0, 4)
        inside = [path for path in outer.rglob("*") if ".locks" not in path.parts and "part" not in path.suffix]
        assert not [path for path in inside if path.is_symlink() or not (path.is_file() or path.is_dir())]
        assert {path.name for path in outer.iterdir()} == {"data"}
        held = {path.name for path in (outer / "data" / "mine").iterdir()} - {"images", "rows.json"}
        assert not any(name.endswith("unpacking") for name in held)
        assert (outer / "data" / "mine" / "images").exists() == (code == 0), "all at once or not at all"
        return code == 0, out

    return fetch


def zipped(files: dict[str, bytes], kind: int = 0, packed: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", packed) as file:
        for name, body in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr, entry.compress_type = kind << 16 if name not in IMAGES else 0, packed
            file.writestr(entry, body)
    return content.getvalue()


def special(name: str, kind: bytes, link: str = "", size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, size
    return entry


@pytest.mark.parametrize("name", ["../../evil.png", "/tmp/ttmbench-evil.png", "val/../../../evil.png", "../images.x/e"])
def test_a_path_that_leads_out_refuses_the_archive(fetch, name):
    for archive in (zipped({**IMAGES, name: b"x"}), tar_of({**IMAGES, name: b"x"})):
        fine, said = fetch(archive)
        assert not fine and "leaves the folder" in said
    assert not Path("/tmp/ttmbench-evil.png").exists()


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "entries",
    [
        [special("val/x", LINK, "/etc/hostname")],
        [special("val/x", LINK, "../../../rows.json")],
        [special("val/x", HARD, "/etc/hostname")],
        [special("val/d", LINK, "/tmp")],
        [special("a", LINK, "b"), special("b", LINK, "a")],
        *([special("val/x", kind)] for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)),
    ],
)
def test_links_out_and_devices_refuse_a_tar(fetch, entries):
    fine, said = fetch(tar_of(IMAGES, "w:gz", tuple(entries)))
    assert not fine and "archive of images" in said


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_refuse_a_zip(fetch, kind):
    fine, said = fetch(zipped({**IMAGES, "val/x": b"/etc/hostname"}, kind))
    assert not fine and "neither a file nor a folder" in said


def test_a_link_inside_becomes_a_copy_and_litter_is_left(fetch, tmp_path):
    files = {name: body for name, body in IMAGES.items() if "0" not in name} | {"__MACOSX/val/._1.png": b"x"}
    assert fetch(tar_of(files, "w", (special("val/0.png", LINK, "1.png"),)))[0]
    images = tmp_path / "outer" / "data" / "mine" / "images"
    assert (images / "0.png").read_bytes() == IMAGES["val/1.png"] and len(list(images.iterdir())) == 3


@pytest.mark.parametrize("packed", [zipfile.ZIP_DEFLATED, None])
def test_limits_of_bytes_and_files(fetch, monkeypatch, packed):
    files = {**IMAGES, "val/9.bin": bytes(8 << 20)}
    archive = tar_of(files) if packed is None else zipped(files, packed=packed)
    for limit, words in ((f"archive_free={1 << 20}", "as a bomb"), ("archive_files=1", "has more than 1 files")):
        monkeypatch.setenv("TTMBENCH_LIMITS", limit)
        fine, said = fetch(archive)
        assert not fine and words in said
    monkeypatch.delenv("TTMBENCH_LIMITS")
    assert fetch(archive)[0], "a small archive may pack well"


def test_a_header_that_would_fill_the_memory(fetch):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as file:
        file.addfile(special("x", tarfile.XHDTYPE, size=64 << 20), io.BytesIO(bytes(64 << 20)))
    fine, said = fetch(content.getvalue())
    assert not fine and "has a header of 67108864 bytes" in said


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("how", DAMAGE)
def test_no_file_is_lost_to_damage_that_looks_like_the_end_of_a_tar(fetch, how, mode):
    pack = {"w": bytes, "w:gz": gzip.compress, "w:bz2": bz2.compress, "w:xz": lzma.compress}[mode]
    fine, said = fetch(pack(damaged(tar_of(IMAGES, "w"), how, member=2)))
    assert not fine and "is damaged" in said and "at byte" in said


@pytest.mark.parametrize("padding", [0, 18])
def test_the_ends_that_writers_of_tars_make(fetch, tmp_path, padding):
    path = write(tmp_path / "x.tar", tar_of(IMAGES, "w"))
    end_as(path, padding)
    assert fetch(gzip.compress(path.read_bytes()))[0]


def test_checksums_are_read(fetch):
    stored = bytearray(gzip.compress(tar_of({**IMAGES, "val/9.bin": os.urandom(50_000)}, "w"), compresslevel=0))
    stored[len(stored) // 2] ^= 1
    zips = bytearray(zipped({"val/0.png": b"a" * 1000}))
    zips[500] ^= 1
    for archive in (bytes(stored), bytes(zips), tar_of(IMAGES)[:-4], zipped(IMAGES)[:-30], b"<html>" * 500, b""):
        fine, said = fetch(archive)
        assert not fine and ("is damaged or of an unknown kind" in said or "has no files" in said), said


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_an_encrypted_one_and_no_member(fetch, tmp_path):
    fine, said = fetch(zipped({"a": b"1", "./a": b"2"}))
    assert not fine and "File exists" in said
    (part,) = tmp_path.rglob("*.part")  # what the disk refuses is not fetched again, what is damaged is
    part.unlink()
    archive = bytearray(zipped(IMAGES))
    archive[archive.index(b"PK\1\2") + 8] |= 1
    assert "is encrypted" in fetch(bytes(archive))[1]
    assert "has no elsewhere" in fetch(zipped(IMAGES), member="elsewhere")[1] and not [*tmp_path.rglob("*.part")]


@pytest.mark.parametrize("path", ["../x.json", "/x.json", "a/../../x.json"])
def test_a_task_file_fetches_nothing_to_outside_of_the_folder(site, tmp_path, capsys, path):
    get = {path: site.put("/rows.json", b"[]")}
    source = {"kind": "annotations", "file": "rows.json", "images": ".", "get": get}
    file = task_file(tmp_path / "tasks", source, {"shape": [1, 2], "images": ["a"], "captions": ["b", "c"]})
    code, out, err = run(capsys, "download", file, "--data_dir", tmp_path / "data")
    assert code in (2, 4) and "leaves the folder" in out + err and not (tmp_path / "x.json").exists()


class Harm:
    """What a pickle runs when it is read."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self):
        return (Path.touch, (self.victim,))


def test_a_pickle_among_weights_runs_nothing(tmp_path, tiny_hf_clip, capsys):
    victim = tmp_path / "victim"
    folder = Path(shutil.copytree(tiny_hf_clip, tmp_path / "model"))
    for file in folder.glob("*.safetensors"):
        file.unlink()
    torch.save({"weight": Harm(victim)}, folder / "pytorch_model.bin")
    torch.save({"weight": Harm(victim)}, tmp_path / "weights.pt")
    for words in (
        ["hf", "--model_args", f"pretrained={folder}"],
        ["open_clip", "--model_args", f"model=ViT-S-32,pretrained={tmp_path / 'weights.pt'}"],
    ):
        code, _, err = run(capsys, "--model", *words, "--tasks", "shapes_color", "--limit", "4", "--device", "cpu")
        assert code == 4 and "Traceback" not in err and not victim.exists()
