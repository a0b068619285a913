"""Tar shards: which files are a sample, several captions in a text, and tar files that are none."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import yaml
from support.task_data import changed, encoded, find, load, tar_of, task_file, write

from ttmbench.cli import main
from ttmbench.errors import DataError, OutOfReachError


def photo(number: int, form: str = "JPEG") -> bytes:
    return encoded((number * 20, 0, 0), (9 + number, 7), form)


def shard(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    return write(path, tar_of(files, mode))


def task(tmp_path: Path, source: dict, **group) -> Path:
    folder = {"kind": "huggingface", "path": str(tmp_path / "shards"), "data_files": "test/*.tar"}
    source, group = {**folder, **source}, {"captions": "txt", **group}
    return task_file(tmp_path, source, {"images": ["image"], **group}, kind="retrieval", metrics=["i2t_recall_at_1"])


def test_files_of_one_name_are_a_sample_and_lines_are_captions(tmp_path, capsys):
    folder = tmp_path / "shards" / "test"
    shard(folder / "10.tar", {"c.jpg": photo(3), "c.txt": b"three"})
    first = {"._a.jpg": b"litter of macOS", "a.jpg": photo(1), "a.txt": b"one\r\n uno \n\n"}
    shard(folder / "9.tar", {**first, "deep/b.jpg": photo(2), "deep/b.txt": b"two"})
    path = task(tmp_path, {"lines": ["txt"]})
    (folder / "nshards.txt").write_text("2\n")
    loaded = load(path)
    captions = [(group.group_id, group.captions) for group in loaded.groups]
    assert captions == [("0", ("one", "uno")), ("1", ("two",)), ("2", ("three",))]
    assert [group.images[0].open().width for group in loaded.groups] == [10, 11, 12]
    assert loaded.groups[0].images[0].read() == first["a.jpg"]
    assert [group.group_id for group in load(path, limit=2).groups] == ["0", "1"]
    assert main(["validate", str(path)]) == 0
    assert "3 images with 4 captions" in capsys.readouterr().out
    (folder / "nshards.txt").write_text("3\n")
    with pytest.raises(OutOfReachError, match=r"1 of 3 shards is missing"):
        load(path)
    assert main(["doctor", "--tasks", str(path)]) == 4 and "1 of 3 shards" in capsys.readouterr().out
    (folder / "nshards.txt").write_text("1\n")
    with pytest.raises(DataError, match="says 1 shards, and 2 are there"):
        load(path)


def test_a_text_is_a_caption_without_mark_and_line_feed(tmp_path):
    shard(tmp_path / "shards/test/0.tar", {"a.jpg": photo(1), "a.txt": b"\xef\xbb\xbfa cat  \n"})
    source = {"kind": "huggingface", "path": str(tmp_path / "shards"), "data_files": "test/*.tar"}
    path = task_file(tmp_path, source, {"shape": [1, 2], "images": ["image"], "captions": ["txt", "__key__"]})
    assert load(path).groups[0].captions == ("a cat", "a")


def test_captions_and_ids_from_json(tmp_path):
    meta = json.dumps({"captions": ["a", "b"], "cocoid": 522418}).encode()
    shard(tmp_path / "shards/test/test-00000.tar", {"000000001.jpg": photo(1), "000000001.json": meta})
    path = task(
        tmp_path, {"data_files": ["test/test-*.tar"]}, captions="json.captions", id="json.cocoid", tags=["__key__"]
    )
    (group,) = load(path).groups
    assert (group.group_id, group.captions, group.tags) == ("522418", ("a", "b"), {"__key__": "000000001"})


def test_a_label_makes_it_a_classification_task(tmp_path):
    for number in range(3):
        sample = {"s.webp": photo(number, "WEBP"), "s.cls": str(number % 2).encode()}
        shard(tmp_path / f"shards/test/{number}.tar", sample)
    path = task(tmp_path, {})
    spec = yaml.safe_load(path.read_text())
    spec |= {"kind": "classification", "classes": {"names": ["cat", "dog"]}, "metrics": ["accuracy_top1"]}
    spec["group"] = {"images": ["image"], "label": "cls"}
    path.write_text(yaml.safe_dump(spec))
    assert [group.captions for group in load(path).groups] == [("0",), ("1",), ("0",)]


GOOD = {"a.jpg": photo(1), "a.txt": b"one"}
LINK = tarfile.TarInfo("a.jpg")
LINK.type, LINK.linkname = tarfile.SYMTYPE, "/etc/hostname"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar_of(GOOD, "w")[:600], "unexpected end of data|found neither"),
        (tar_of(GOOD), "cannot be read as an uncompressed tar"),
        (tar_of({}, "w", (LINK,)), "'a.jpg' is neither a file nor a folder"),
        (b"no tar at all" * 100, "cannot be read as an uncompressed tar"),
        (bytes(10240), r"0\.tar .*it has no files"),
        (tar_of(GOOD, "w") + bytes(17 << 20), r"at byte \d+, found neither"),
        (tar_of(GOOD | {"a.txt": b"\xff\xfe"}, "w"), "cannot be loaded: .*utf-8"),
        (tar_of(GOOD | {"a.txt.gz": b"packed"}, "w"), r"'a\.txt\.gz' should be an image or a text"),
        (tar_of(GOOD | {"a.cls": b"dog"}, "w"), r"whole number in \.cls"),
        (tar_of({"a.txt": b"one"}, "w"), "there is no column 'image'"),
        (None, r"test/\*\.tar .* is missing"),
    ],
    ids=range(11),
)
def test_a_shard_that_is_none_is_told(tmp_path, content, words):
    (tmp_path / "shards" / "test").mkdir(parents=True)
    if content is not None:
        write(tmp_path / "shards" / "test" / "0.tar", content)
    with pytest.raises(DataError, match=words):
        load(task(tmp_path, {"lines": ["txt"]}))


@pytest.mark.parametrize(
    ("name", "table", "folder", "image"),
    [
        ("coco_retrieval", "test_5k_mscoco_2014.csv", "images_mscoco_2014_5k_test", "COCO_val2014_{:012d}.jpg"),
        ("flickr30k_retrieval", "test_1k_flickr.csv", "images_flickr_1k_test", "{}.jpg"),
    ],
)
def test_a_mirror_is_a_table_and_the_folder_of_an_archive(tmp_path, name, table, folder, image):
    """Captions are a JSON list in a cell."""
    names = [image.format(number) for number in (391895, 42, 7)]
    captions = [json.dumps([f"{name} {n}" for n in range(5)]).replace('"', '""') for name in names]
    rows = [f'"{cell}",test,{name}' for cell, name in zip(captions, names, strict=True)]
    write(tmp_path / "retrieval" / table, "\n".join(["raw,split,filename", *rows]))
    for number, file in enumerate(names):
        write(tmp_path / "retrieval" / folder / file, photo(number))
    mirror = next(one for one in find(name).spec.source["of"] if f"retrieval/{table}" in one.get("get", {}))
    assert set(mirror["get"]) == {f"retrieval/{table}", f"retrieval/{folder}"}
    loaded = load(changed(name, n_groups=3, n_captions=15), tmp_path)
    assert [group.images[0].name for group in loaded.groups] == names and len(loaded.source["passed_over"]) == 2
    assert loaded.groups[1].captions == tuple(f"{names[1]} {n}" for n in range(5))
