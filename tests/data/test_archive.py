"""Archives: what is right is unpacked in one step; what leads out, is too large or broken is refused whole."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.damaged_tars import DAMAGE, damaged, end, end_as
from support.task_data import tar_of, write

from ttmbench.data.download import archive as module
from ttmbench.data.download.archive import unpack
from ttmbench.errors import DataError

FILES = {"images/a.jpg": b"a" * 100, "images/deep/b.jpg": b"b" * 50}


def zipped(
    path: Path, files: dict[str, bytes], links: dict[str, str] | None = None, packed: int = 0, kind: int = stat.S_IFLNK
) -> Path:
    with zipfile.ZipFile(path, "w", packed or zipfile.ZIP_STORED) as file:
        for name, content in files.items():
            file.writestr(name, content)
        for name, target in (links or {}).items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (kind | 0o777) << 16
            file.writestr(entry, target)
    return path


def tarred(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo, mode: str = "w:gz") -> Path:
    return write(path, tar_of(files, mode, more))


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def patched(archive: Path, at: int, content: bytes) -> Path:
    """The archive with other bytes at a position."""
    raw = archive.read_bytes()
    return write(archive, raw[:at] + content + raw[at + len(content) :])


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def beside(archive: Path) -> list[str]:
    return sorted(path.name for path in archive.parent.iterdir() if path != archive)


def refused(archive: Path, words: str, member: str | None = None) -> None:
    """An archive is refused with these words, and nothing of it is written."""
    before = beside(archive)
    with pytest.raises(DataError, match=words):
        unpack(archive, archive.parent / "refused", member)
    assert beside(archive) == before


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz", "w:bz2", "w:xz"])
def test_every_kind_of_archive_without_the_folder_that_holds_all(tmp_path, mode):
    make = zipped if mode == "zip" else lambda path, files: tarred(path, files, mode=mode)
    archive = make(tmp_path / "x.part", {f"outer/inner/{name}": content for name, content in FILES.items()})
    done = unpack(archive, tmp_path / "out")
    assert files_of(tmp_path / "out") == {"a.jpg": b"a" * 100, "deep/b.jpg": b"b" * 50}
    assert (done.files, done.bytes) == (2, 150) and beside(archive) == ["out"]
    assert archive.exists()


def test_an_archive_without_a_folder_and_with_the_litter_of_a_desktop(tmp_path):
    unpack(zipped(tmp_path / "x.zip", {"a.jpg": b"a", "d/b.jpg": b"b"}), tmp_path / "flat")
    assert files_of(tmp_path / "flat") == {"a.jpg": b"a", "d/b.jpg": b"b"}
    litter = {"__MACOSX/images/._a.jpg": b"x", "images/._a.jpg": b"x", "images/.DS_Store": b"x"}
    done = unpack(tarred(tmp_path / "x.tgz", {**FILES, **litter}), tmp_path / "out")
    assert set(files_of(tmp_path / "out")) == {"a.jpg", "deep/b.jpg"} and done.files == 2


def test_a_folder_or_a_file_of_an_archive(tmp_path):
    archive = zipped(tmp_path / "x.zip", {**FILES, "data/rows.json": b"[]"})
    unpack(archive, tmp_path / "images", "images")
    unpack(archive, tmp_path / "rows.json", "data/rows.json")
    assert set(files_of(tmp_path / "images")) == {"a.jpg", "deep/b.jpg"}
    assert (tmp_path / "rows.json").read_bytes() == b"[]"
    refused(archive, "has no 'missing'; it has data, images", "missing")


def test_what_was_there_is_replaced_in_one_step_and_only_by_a_whole_archive(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.jpg").write_bytes(b"old")
    (tmp_path / ".out.unpacking").mkdir()
    bad = zipped(tmp_path / "bad.zip", {"a.jpg": b"new", "../b.jpg": b"new"})
    with pytest.raises(DataError):
        unpack(bad, tmp_path / "out")
    assert files_of(tmp_path / "out") == {"old.jpg": b"old"}
    bad.unlink()
    good = zipped(tmp_path / "good.zip", {"d/new.jpg": b"new"})
    unpack(good, tmp_path / "out")
    assert files_of(tmp_path / "out") == {"new.jpg": b"new"} and beside(good) == ["out"]


OUTSIDE = ["../evil", "a/../../evil", "/evil", "a\\..\\evil", "C:evil", "C:/evil"]


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_path_that_leads_out_refuses_the_archive(tmp_path, kind, name):
    make = zipped if kind == "zip" else tarred
    refused(make(tmp_path / "x.archive", {"images/a.jpg": b"a", name: b"evil"}), "leads out of its folder")


def test_links_inside_become_copies(tmp_path):
    links = [
        special("images/deep/same.jpg", tarfile.SYMTYPE, "../a.jpg"),
        special("images/hard.jpg", tarfile.LNKTYPE, "images/a.jpg"),
        special("images/chain.jpg", tarfile.SYMTYPE, "deep/same.jpg"),
    ]
    unpack(tarred(tmp_path / "x.tgz", FILES, *links), tmp_path / "out")
    copies = [name for name, content in files_of(tmp_path / "out").items() if content == FILES["images/a.jpg"]]
    assert sorted(copies) == ["a.jpg", "chain.jpg", "deep/same.jpg", "hard.jpg"]
    assert not any(path.is_symlink() or path.stat().st_nlink > 1 for path in (tmp_path / "out").rglob("*.jpg"))
    unpack(zipped(tmp_path / "x.zip", FILES, {"images/link.jpg": "deep/b.jpg"}), tmp_path / "zip")
    assert files_of(tmp_path / "zip")["link.jpg"] == b"b" * 50


@pytest.mark.parametrize("target", ["/etc/hostname", "../../secret", "..", "../out/x/../../../secret", "a\\b"])
def test_a_link_that_leads_out_refuses_the_archive(tmp_path, target):
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    words = "link to .*(leads out of its folder|not a file of the archive)"
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        refused(tarred(tmp_path / "x.archive", FILES, special("images/link", kind, target)), words)
    refused(zipped(tmp_path / "x.archive", FILES, {"images/link": target}), words)


LINK, FOLDER = tarfile.SYMTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([special("../evil", FOLDER)], "leads out of its folder"),
        ([special("images/d", LINK, "/tmp")], "leads out"),
        ([special("a", LINK, "b"), special("b", LINK, "a")], "which is not a file of the archive"),
        ([special("a", LINK, "nothing")], "which is not a file of the archive"),
        (
            [special("d", LINK, "images/a.jpg"), special("d/x", LINK, "images/a.jpg")],
            "which is not a file of the archive",
        ),
        *(
            ([special("images/device", kind)], "images/device is neither a file nor a folder")
            for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
        ),
    ],
)
def test_what_is_no_file_of_the_archive_refuses_it(tmp_path, more, words):
    refused(tarred(tmp_path / "x.tgz", FILES, *more), words)


def test_a_device_in_a_zip(tmp_path):
    refused(zipped(tmp_path / "x.zip", {}, {"device": ""}, kind=stat.S_IFCHR), "neither a file nor a folder")


def test_an_encrypted_member_refuses_the_archive_also_where_another_one_is_wanted(tmp_path):
    archive = zipped(tmp_path / "x.zip", FILES)
    patched(archive, archive.read_bytes().index(b"PK\1\2") + 8, b"\1")
    for member in (None, "images/deep"):
        refused(archive, r"'images/a\.jpg' is encrypted", member)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_bomb_is_refused_with_the_reason(tmp_path, monkeypatch, kind):
    bomb = {f"images/{index}": bytes(1 << 20) for index in range(8)}
    path = tmp_path / "x.archive"
    archive = zipped(path, bomb, packed=zipfile.ZIP_DEFLATED) if kind == "zip" else tarred(path, bomb)
    assert archive.stat().st_size < (8 << 20) / 200
    monkeypatch.setenv("TTMBENCH_LIMITS", f"archive_free={1 << 20}")
    refused(archive, r"unpacks to more than \d+: .*archive bomb")
    monkeypatch.delenv("TTMBENCH_LIMITS")
    assert unpack(archive, tmp_path / "out").bytes == 8 << 20, "a small archive of text may pack well"


def test_the_true_size_counts_and_not_what_the_archive_says(tmp_path):
    archive = zipped(tmp_path / "x.zip", {"images/a": bytes(1 << 20)}, packed=zipfile.ZIP_DEFLATED)
    central = archive.read_bytes().index(b"PK\1\2")
    refused(patched(archive, central + 24, (10).to_bytes(4, "little")), "damaged|bomb")


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize(("limit", "why"), [("files=1", "has more than 1 files"), ("bytes=120", "bomb")])
def test_too_many_files_and_too_many_bytes(tmp_path, monkeypatch, make, limit, why):
    monkeypatch.setenv("TTMBENCH_LIMITS", f"archive_{limit}")
    refused(make(tmp_path / "x.archive", FILES), why)


def test_a_header_of_many_bytes_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 1 << 16)
    monkeypatch.setattr(module, "CHUNK", 1 << 14)
    entry = special("x", tarfile.XHDTYPE)
    entry.size = 1 << 20
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as file:
        file.addfile(entry, io.BytesIO(bytes(1 << 20)))
    refused(tmp_path / "x.tgz", "has a header of 1048576 bytes")


@pytest.mark.parametrize("keep", [0, 10, 200, -30])
def test_a_broken_archive_is_named(tmp_path, keep):
    content = {f"images/{index}": os.urandom(300) for index in range(5)}
    for make in (zipped, tarred):
        whole = make(tmp_path / "x.archive", content).read_bytes()
        (tmp_path / "x.archive").write_bytes(whole[:keep])
        refused(tmp_path / "x.archive", r"archive x\.archive (is damaged|cannot be unpacked|has no files)")


def test_a_file_that_is_no_archive_and_one_changed_byte_are_noticed(tmp_path):
    refused(write(tmp_path / "y.zip", b"<html>" * 500), "damaged or of an unknown kind")
    refused(patched(zipped(tmp_path / "x.zip", {"a.jpg": b"a" * 1000}), 500, b"b"), r"x\.zip is damaged")


PACKED = {"w": bytes, "w:gz": gzip.compress, "w:bz2": bz2.compress, "w:xz": lzma.compress}


@pytest.mark.parametrize("mode", PACKED)
@pytest.mark.parametrize("how", DAMAGE)
def test_no_file_is_lost_to_damage_that_looks_like_the_end_of_a_tar(tmp_path, how, mode):
    """The packing itself is whole: the tar was damaged before."""
    whole = tarred(tmp_path / "x.tar", {f"{n}.jpg": b"a" * 100 for n in range(6)}, mode="w").read_bytes()
    (tmp_path / "x.tar").write_bytes(PACKED[mode](damaged(whole, how, member=4)))
    refused(tmp_path / "x.tar", r"x\.tar is damaged.*at byte.*download it again")


@pytest.mark.parametrize("padding", [0, 1, 18, 2000])
@pytest.mark.parametrize("mode", PACKED)
def test_the_ends_that_writers_of_tars_make(tmp_path, mode, padding):
    archive = tarred(tmp_path / "x.tar", FILES, mode="w")
    end_as(archive, padding)
    archive.write_bytes(PACKED[mode](archive.read_bytes()))
    assert unpack(archive, tmp_path / "out").files == len(FILES)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("damage", ["flipped", "cut trailer", "cut at the end of the tar"])
def test_the_checksum_of_a_packed_tar_is_read(tmp_path, mode, damage):
    """Also where it stands behind all files: in a flipped byte of an image, and at the very end."""
    content = {"images/a.jpg": os.urandom(50_000), "images/b.jpg": os.urandom(40_000)}
    raw = bytearray(tarred(tmp_path / "x.tar", content, mode="w").read_bytes())
    if mode == "w:gz":  # stored blocks: a changed byte of the packed file is a changed byte of an image
        packed = bytearray(gzip.compress(bytes(raw), compresslevel=0))
    else:
        packed = bytearray(PACKED[mode](bytes(raw)))
    if damage == "flipped":
        packed[len(packed) // 2] ^= 1
    elif damage == "cut trailer":
        packed = packed[:-4]
    else:
        assert len(raw) > end(bytes(raw)) + 1024
        packed = packed[: -(len(raw) - end(bytes(raw)))] if mode == "w:gz" else packed[:-20]
    (tmp_path / "x.tar").write_bytes(packed)
    refused(tmp_path / "x.tar", r"x\.tar is damaged", "images/a.jpg")


def test_every_flipped_byte_of_a_bz2_is_damage(tmp_path):
    draws = random.Random(0)
    raw = tarred(tmp_path / "x.tar", {"images/a.jpg": draws.randbytes(1_000)}, mode="w").read_bytes()
    whole = bz2.compress(raw)
    for at in range(4, len(whole) - 4, 8):  # not the name of the format, without which it is no bz2
        (tmp_path / "x.tar").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(tmp_path / "x.tar", r"x\.tar is damaged")


def test_zeros_without_end_behind_a_tar_are_no_padding(tmp_path):
    whole = tarred(tmp_path / "x.tar", FILES, mode="w").read_bytes()
    (tmp_path / "x.tar").write_bytes(gzip.compress(whole + bytes(17 << 20), compresslevel=1))
    refused(tmp_path / "x.tar", "16777216 zero bytes and more")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_and_an_empty_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("a", b"1")
        file.writestr("./a", b"2")
    refused(tmp_path / "x.zip", "two files of one name")
    refused(zipped(tmp_path / "y.zip", {}), "has no files")
