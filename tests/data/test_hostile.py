"""Hostile input of every kind: one clear line, nothing outside the folder, nothing executed or rendered."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import struct
import sys
import tracemalloc
import unicodedata
import zipfile
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.documents import DIGEST, whole_document

from ttmbench import Group, ImageRef, SourceSpec, hookimpl
from ttmbench._util.arrays import read_arrays
from ttmbench._util.console import one_line, plain
from ttmbench._util.file_io import Unreadable, file_digest, limit, parse_json, read_json, read_yaml, safe_name
from ttmbench._util.images import BadImage, as_rgb, open_image
from ttmbench.cli import main
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.evaluator.evaluate import read_samples
from ttmbench.evaluator.public_api import simple_evaluate
from ttmbench.model_adapters import embeddings
from ttmbench.report.exporters import csv_cell
from ttmbench.report.paper_table import latex, markdown
from ttmbench.results.stored_files import read_scores
from ttmbench.types import GroupShape

SQUARE = GroupShape(2, 2)


def png_of(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG whose header promises so many pixels; its rows are all zero as far as they go."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    data = content or zlib.compress(b"\0" * min(1_000_000, (width + 1) * height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def refused(capsys, *arguments: object, code: int = 2) -> str:
    """The one line that a command says when it refuses."""
    found = main([str(one) for one in arguments])
    err = capsys.readouterr().err
    assert found == code, err
    assert err.startswith("ttmbench: ") and err.count("\n") == 1 and "shows where" not in err, err
    assert err.rstrip("\n").isprintable(), err
    return err


@contextmanager
def memory():
    """Gives a function that says how many bytes were held at most inside: what is not read is not held."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ---- YAML

YAML_FAULTS = {
    "tag": ("x: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "unknown tag": ("x: !mine {}", "could not determine a constructor"),
    "bomb": ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "aliases"),
    "flow depth": ("x: " + "[" * 5000, "nest"),
    "block depth": ("\n".join(" " * level + "x:" for level in range(200)), "nests more than 50 deep"),
    "long number": ("version: " + "9" * 5000, "is not valid YAML"),
    "wrong date": ("x: 2026-13-45", "month must be in"),
    "wrong int": ("x: !!int abc", "is not valid YAML"),
    "doubled key": ("task: a\ntask: b", "given twice"),
    "two documents": ("a: 1\n---\nb: 2", "single document"),
    "surrogate": ('x: "\\ud800"', "is not valid YAML"),
    "null character": ("x: \0", "characters are not allowed"),
    "unhashable key": ("? [a, b]\n: c", "unhashable"),
}
HUGE = ("1" + ":59" * 200_000, "9" * 500_000, "0x" + "f" * 500_000, "1" * 500_000 + ".5")  # each costs minutes to read
YAML_FAULTS |= {f"number {n}": (f"a: 1:30\nb: {text}\n", "line 2 has a number of ") for n, text in enumerate(HUGE)}


@pytest.mark.parametrize("name", YAML_FAULTS)
@pytest.mark.parametrize("option", ["--tasks", "--config"])
def test_yaml_that_is_refused(tmp_path, capsys, name, option):
    text, message = YAML_FAULTS[name]
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    words = ("--model", "tiny-clip") if option == "--tasks" else ()
    assert message in refused(capsys, "run", *words, option, file)


def test_a_yaml_of_50_mb_is_not_read(tmp_path, capsys):
    with (tmp_path / "mine.yaml").open("wb") as stream:
        stream.truncate(50_000_000)
    with zipfile.ZipFile(tmp_path / "package.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.write(tmp_path / "mine.yaml", "mine.yaml")
    with memory() as most:
        message = refused(capsys, "show", tmp_path / "mine.yaml")
        with pytest.raises(UsageError, match="too large"):
            read_yaml(zipfile.Path(tmp_path / "package.zip", "mine.yaml"))
        assert most() < 50_000_000 / 2
    assert "is too large: at most 1000000 bytes" in message and "TTMBENCH_LIMITS=yaml_bytes=N" in message


def test_a_limit_is_raised_by_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "x.yaml"
    file.write_text("a: " + "x" * 1_100_000)
    with pytest.raises(UsageError, match="too large"):
        read_yaml(file)
    monkeypatch.setenv("TTMBENCH_LIMITS", "image_pixels=1e6, yaml_bytes=2e6")
    assert len(read_yaml(file)["a"]) == 1_100_000 and limit("image_pixels") == 1_000_000
    for wrong in ("yaml_bytes", "yaml_bytes=x", "nothing=3", "yaml_bytes=0", "yaml_bytes=inf"):
        monkeypatch.setenv("TTMBENCH_LIMITS", wrong)
        with pytest.raises(UsageError, match="TTMBENCH_LIMITS"):
            limit("yaml_bytes")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": {"kind": "folder", "path": "/etc/passwd"}}, "leaves the folder"),
        ({"source": {"kind": "folder", "path": "../secret.jsonl"}}, "leaves the folder"),
        ({"source": {"kind": "folder", "path": "link.jsonl"}}, "leaves the folder"),
        ({"source": {"kind": "folder", "path": "a\0b"}}, "not a usable path"),
        ({"source": {"kind": "annotations", "file": "a/../../x"}}, "leaves the folder"),
        ({"source": {"kind": "annotations", "file": "x", "also": {"x": ["../other"]}}}, "leaves the folder"),
        ({"include": "/etc/passwd"}, "not a file of the same folder"),
        ({"group": {"shape": [12, 12]}}, "matchings"),
        ({"group": {"shape": [1, 10**9]}}, "less than or equal to"),
        ({"group": {"shape": [2, 2], "n_groups": 10**12}}, "less than or equal to"),
        ({"version": float("nan")}, "version"),
        ({"task": "x" * 101}, "at most 100 characters"),
        ({"task": "a/b"}, "pattern"),
        ({"ttm": {"defaults": {"lr": float("nan")}}}, "lr"),
        ({"ttm": {"defaults": {"betas": [float("nan"), 2]}}}, "betas"),
        ({"source": {"kind": "rendered", "scene": "color"}, "group": {"shape": [2, 2], "n_groups": 10**6}}, "at most"),
    ],
)
def test_what_a_task_file_may_not_say(folder_task, tmp_path, capsys, changes, message):
    folder = folder_task(**changes)
    (tmp_path / "secret.jsonl").write_text("{}\n")
    (folder / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    code = main(["validate", str(next(folder.glob("*.yaml")))])
    out, err = capsys.readouterr()
    assert code in (2, 4) and message in out + err and "Traceback" not in err


# ---- JSON, lines, CSV


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nests too deeply"),
        ('{"a": 1, "a": 2}', "given twice"),
        ("[NaN]", "NaN is not a finite number"),
        ("[1e999]", "1e999 is not a finite number"),
        ("[" + "9" * 5000 + "]", "is not JSON"),
        ('["\\ud800"]', "half a surrogate pair"),
        ("", "is not JSON"),
    ],
)
def test_json_that_is_refused(text, message):
    with pytest.raises(Unreadable, match=message):
        parse_json(text)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(Unreadable, match="not a regular file"):
            read_json(path)
        with pytest.raises(DataError, match="not a regular file"):
            read_arrays(path)
    with pytest.raises(Unreadable, match="Is a directory"):
        read_json(tmp_path)


def test_samples_files_that_are_refused(tmp_path):
    for text in ("{}", "[]", "[[1]]", "[true]", '[{"a": 1}]', "[null]", "[1.5]", '"g0"', "{"):
        (tmp_path / "ids.json").write_text(text)
        with pytest.raises(UsageError, match=r"--samples .*ids\.json: (must hold|group ids must|.*is not JSON)"):
            read_samples(str(tmp_path / "ids.json"))


def score_lines(table: np.ndarray, **changes: object) -> str:
    lines = [{"group_id": f"g{index}", "scores": block.tolist(), **changes} for index, block in enumerate(table)]
    return "".join(json.dumps(line) + "\n" for line in lines)


GOOD = np.array([[[2.0, 1.0], [0.5, 3.0]], [[1.0, 2.0], [0.0, 1.0]]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (score_lines(GOOD).replace("2.0", "null"), "which is not a number"),
        (score_lines(GOOD).replace("2.0", "1e999"), "group g0 has a score that is inf"),
        (score_lines(GOOD).replace("2.0", "1e308"), "larger than any logit"),
        (score_lines(GOOD).replace("2.0", "9007199254740993"), "beyond 2"),
        (score_lines(GOOD, seed_index="0"), "seed_index"),
        (score_lines(GOOD, method="../x"), "method"),
        (score_lines(GOOD, filter="mine"), "the key 'filter'"),
        ('{"label": "1_c0_i0", "score": 1, "score": 2}\n', "given twice"),
    ],
)
def test_score_lines_that_are_refused(tmp_path, text, message):
    (tmp_path / "s.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        read_scores(tmp_path / "s.jsonl", SQUARE)


def test_numbers_that_float32_cannot_tell_apart_stay_apart(tmp_path):
    close = np.array([[[16777217.0, 16777216.0], [0.0, 1.0]]])
    (tmp_path / "s.jsonl").write_text(score_lines(close))
    np.savez(tmp_path / "i.npz", scores=close.astype(np.int64))
    for name in ("s.jsonl", "i.npz"):
        found = read_scores(tmp_path / name, SQUARE).scores["none"][0].groups
        assert found[0, 0, 0] > found[0, 0, 1], name


# ---- arrays


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"\0" * 32) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (npy("(1000000000000,)"), "promises 1000000000000 numbers"),
        (npy("(-2, -2, 2)"), "promises"),
        (npy("(2, 2, 2)", "'|O'"), "not numbers"),
        (npy("(2, 2, 2)", "[('a', '<f4')]"), "not numbers"),
        (npy("(2, 2, 2)", "'<c8'", b"\0" * 64), "not numbers"),
        (npy("(2, 2, 2)", "'|b1'", b"\0" * 8), "not numbers"),
        (npy("(2, 2, 2)", "__import__('os').system('true')"), "not a readable npz"),
        (npy("(2, 2, 2)") + b"more", "4 bytes|36 bytes"),
        (b"no array at all", "not a readable npz"),
        (npy("(2, 2, 2)", "'<i8'", struct.pack("<8q", *[2**60] * 8)), "beyond 2"),
    ],
)
def test_npz_that_is_refused(tmp_path, member, message):
    path = npz(tmp_path / "x.npz", scores=member)
    for read in (lambda: read_scores(path, SQUARE), lambda: embeddings.load(path=str(path))):
        with pytest.raises(DataError, match=message):
            read()


def test_an_npz_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setenv("TTMBENCH_LIMITS", "array_free=1e6")
    path = npz(tmp_path / "bomb.npz", scores=npy("(10000000,)", data=bytes(40_000_000)))
    with memory() as most:
        with pytest.raises(DataError, match="unpack to 4000"):
            read_scores(path, SQUARE)
        assert most() < 20_000_000


def tensors(path: Path, header: object, data: bytes = b"\0" * 32, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


NUMBERS_AS_IDS = {"ttmbench": '{"format":"ttmbench-scores","group_ids":"[1]"}'}


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2, 2, 2], "data_offsets": [0, 32], **changes}


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({"a": entry(data_offsets=[0, 10**12])}, None),
        ({"a": entry(data_offsets=[-8, 24])}, None),
        ({"a": entry(shape=[2, 2, 3])}, None),
        ({"a": entry(shape=[2**62, 8, 2])}, None),
        ({"a": entry(dtype="F1")}, None),
        ({"a": entry()}, 2**63),
        ({"a": entry()}, 3),
        (b'{"a": ' + json.dumps(entry()).encode() + b', "a": ' + json.dumps(entry()).encode() + b"}", None),
        ({"a": entry(), "__metadata__": {"ttmbench": "{"}}, None),
        ({"a": entry(), "__metadata__": {"ttmbench": '{"format": "ttmbench-scores"}'}}, None),
        ({"scores.none.0": entry(), "__metadata__": NUMBERS_AS_IDS}, None),
        (b"{" * 1000, None),
    ],
)
def test_safetensors_that_are_refused(tmp_path, header, length):
    path = tensors(tmp_path / "x.safetensors", header, length=length)
    with pytest.raises(DataError, match=r"x\.safetensors"):
        read_scores(path, SQUARE)


# ---- images


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (6, 4), **more: object) -> bytes:
    stream = io.BytesIO()
    image = Image.frombytes("RGB", size, bytes(range(3 * size[0] * size[1]))).convert(mode)
    image.save(stream, kind, **more)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png_of(60_000, 60_000), "too large"),
        (png_of(10_000, 9_000), "90000000|10000x9000 pixels, more than"),
        (png_of(30_000, 2), "strip"),
        (png_of(0, 5), "known format|no pixels"),
        (b"", "known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n%%EOF\n", "known format"),
        (b"%PDF-1.4\n%%EOF", "known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "known format"),
        (encoded("ICO"), "known format"),
        (encoded("PNG")[:-30], "truncated|broken|Truncated"),
        (encoded("JPEG")[:-20], "Truncated|truncated"),
    ],
)
def test_images_that_are_refused(folder_task, capsys, content, message):
    folder = folder_task()
    (folder / "images" / "0_0.png").write_bytes(content)
    assert main(["validate", str(folder / "mine.yaml")]) == 4
    out = capsys.readouterr().out
    assert re.search(rf"image 0_0\.png of group g0 cannot be read: .*({message})", out), out


def test_nothing_but_raster_readers_is_ever_asked(monkeypatch):
    asked = []
    Image.init()
    for name, (_, accept) in list(Image.OPEN.items()):
        note = partial(lambda name, *_: asked.append(name), name)
        monkeypatch.setitem(Image.OPEN, name, (note, accept if name == "PNG" else None))
    with pytest.raises(Exception, match=r"."):
        open_image(io.BytesIO(b"%!PS-Adobe-3.0 EPSF-3.0\n"))
    assert set(asked) <= {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"}


def test_an_animated_image_gives_its_first_frame():
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        stream, exact = io.BytesIO(), {"lossless": True} if kind == "WEBP" else {}
        frames[0].save(stream, kind, save_all=True, append_images=frames[1:], **exact)
        assert as_rgb(open_image(io.BytesIO(stream.getvalue()))).getpixel((0, 0)) == (255, 0, 0), kind


def test_modes_become_the_rgb_that_is_meant():
    grey = Image.fromarray(np.array([[0, 256 * 100, 65535]], dtype=np.uint16))
    assert [as_rgb(grey).getpixel((x, 0))[0] for x in range(3)] == [0, 100, 255]
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    stream = io.BytesIO()
    palette.save(stream, "PNG", transparency=b"\x00\x80")
    assert as_rgb(open_image(io.BytesIO(stream.getvalue()))).tobytes() == bytes([10, 20, 30, 200, 100, 50])
    assert as_rgb(open_image(io.BytesIO(encoded("JPEG", "CMYK")))).mode == "RGB"
    with pytest.raises(BadImage, match="32-bit numbers"):
        as_rgb(Image.new("F", (2, 2)))
    for orientation, size in ((6, (4, 6)), (0, (6, 4)), (200, (6, 4))):
        exif = Image.Exif()
        exif[0x0112] = orientation
        assert as_rgb(open_image(io.BytesIO(encoded("JPEG", exif=exif)))).size == size, orientation


def progressive(scans: int) -> io.BytesIO:
    """A JPEG whose last scan, the refinement of one component, is there again and again."""
    plain = io.BytesIO()
    Image.new("RGB", (2000, 2000), (10, 90, 200)).save(plain, "JPEG", progressive=True)
    content = plain.getvalue()
    last = content.rindex(b"\xff\xda")
    return io.BytesIO(content[:last] + content[last:-2] * scans + b"\xff\xd9")


def test_a_jpeg_of_many_scans():
    with pytest.raises(BadImage, match=r"it has \d{4} scans, more than 100; TTMBENCH_LIMITS=jpeg_scans=N"):
        open_image(progressive(5000))
    assert open_image(progressive(1)).size == (2000, 2000)


# ---- texts that are shown

EVIL = (
    *("\x1b[2J\x1b]0;owned\x07", "a\rb", "\u202egnp.exe", "\x9b31m", "a\u2028b", "[/bold][red]x", ":skull:", "\x00"),
    *("<script>alert(1)</script>", "=cmd|' /C calc'!A0", "a|b\n| c |", "\\input{/etc/passwd}", "x" * 100_000, "أحمر"),
    "---<script>alert(1)</script>|x",
)


def no_controls(text: str) -> bool:
    return not [one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Zl") and one not in "\n\t"]


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_captions_and_ids_are_shown_as_they_are_and_do_nothing(folder_task, capsys, evil):
    folder = folder_task()
    rows = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    rows[0].update(id=f"id {evil}", caption_0=f"a caption {evil}")
    (folder / "groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "images" / "0_0.png").write_bytes(b"broken")
    code = main(["validate", str(folder / "mine.yaml")])
    out, err = capsys.readouterr()
    assert code == 4 and "Traceback" not in err and no_controls(out + err)


def run_document(folder: Path, value: str = "1.0", **changes: object) -> Path:
    """A results document as far as other commands read it, with samples of two groups."""
    folder.mkdir(exist_ok=True)
    samples = folder / "run_samples_mine.jsonl"
    lines = [{"group_id": f"g{i}", "method": "none", "metrics": {"group_match": float(i)}} for i in range(2)]
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines).replace("1.0", value))
    document = whole_document(
        {"mine": {"group_match,none": 0.5, "group_match_stderr,none": 0.1}},
        tracks={"mine": {"group_match,none": "matching"}},
        artifacts={samples.name: {"kind": "samples", "task": "mine", "sha256": file_digest(samples), "bytes": 1}},
    )
    document.update(changes)
    (folder / "run.json").write_text(json.dumps(document))
    return folder / "run.json"


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_model_names_in_every_table(tmp_path, capsys, evil):
    runs = tmp_path / "runs"
    path = run_document(runs, model_name=evil)
    assert main(["leaderboard", str(runs), "-o", str(runs)]) == 0
    assert main(["compare", str(path), str(path), "-o", str(tmp_path / "c.md")]) == 0
    assert no_controls(capsys.readouterr().out)
    for cell in (cell for row in csv.reader(io.StringIO((runs / "leaderboard.csv").read_text())) for cell in row):
        assert cell[:1] not in ("=", "+", "@", "\t", "\r")
    text = (tmp_path / "c.md").read_text()
    assert "<script" not in text.replace("\\<script", "") and "\n| c" not in text


def test_escapes():
    assert csv_cell(" =1+1") == "' =1+1" and csv_cell("\uff1d1") == "'\uff1d1" and csv_cell("clip") == "clip"
    assert plain("a\x1b[1m\u200bb") == "a\\x1b[1m\\u200bb"
    assert markdown("[x](javascript:1) `c` &lt;") == "\\[x\\](javascript:1) \\`c\\` \\&lt;"
    assert latex("a%\nb") == "a\\% b" and len(one_line("x" * 10**6)) < 2100


# ---- results documents


@pytest.mark.parametrize("name", ["../secret_samples_mine.jsonl", "/etc/s_samples_mine.jsonl", "a\\b_samples.jsonl"])
def test_samples_are_read_beside_their_document_only(tmp_path, capsys, name):
    (tmp_path / "secret_samples_mine.jsonl").write_text("{}\n")
    path = run_document(
        tmp_path / "runs", artifacts={name: {"kind": "samples", "task": "mine", "sha256": DIGEST, "bytes": 1}}
    )
    assert "is in another folder" in refused(capsys, "compare", path, code=4)


@pytest.mark.parametrize("value", ["NaN", "1e999", "2", '"1"', "true", "[1]"])
def test_samples_lines_with_wrong_values(tmp_path, capsys, value):
    path = run_document(tmp_path / "runs", value)
    assert "line 2 is not a samples line" in refused(capsys, "compare", path, path, code=4)


# ---- names


def test_names_of_folders():
    long = safe_name("org/" + "x" * 300)
    assert len(long) < 120 and long != safe_name("org/" + "x" * 301)
    for name in ("../../etc", "/etc/passwd", "a\\b", "..", "\x1b[2J", "CON", "con.txt", "x.", "\ud800", ""):
        found = safe_name(name)
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", found) and found[-1] != "." and found.upper() != "CON", name


# ---- plugins


def plugin(hook: str, act):
    """A plugin with one hook that does as it is told."""
    return type("Made", (), {f"ttmbench_{hook}": hookimpl(lambda self: act())})()


def raising(error: BaseException):
    def act(*_):
        raise error

    return act


def installed(monkeypatch, thing) -> None:
    """Makes a plugin look like an installed one: an object, or what its import does."""
    load = thing if callable(thing) else lambda: thing
    point = SimpleNamespace(name="evil", value="evil:plugin", dist=None, load=load)
    monkeypatch.setattr("ttmbench.plugins.registry.entry_points", lambda group: [point])


def by_type(error):
    return type(error).__name__


BAD = [ValueError("two\nlines \x1b[2J"), SystemExit(0), MemoryError(), RecursionError("deep"), OSError("x" * 10**6)]
REGISTERING = [f"register_{kind}" for kind in ("adapters", "task_dirs", "sources", "metrics", "schedules")]


def warned(capsys, *arguments: str) -> str:
    """The one line in which a command that works says what is wrong with a plugin."""
    assert main(list(arguments)) == 0
    out, err = capsys.readouterr()
    assert "shapes_color" in out, "built-in tasks are there"
    assert err.startswith("ttmbench: plugin 'evil' ") and err.endswith("; everything else works\n"), err
    assert err.count("\n") == 1 and err.rstrip("\n").isprintable()
    return err


@pytest.mark.parametrize("error", BAD, ids=by_type)
def test_a_plugin_whose_import_or_hook_fails_is_named(monkeypatch, capsys, error):
    installed(monkeypatch, raising(error))
    assert main(["ls", "plugins"]) == 0
    out = capsys.readouterr().out
    assert "evil" in out and by_type(error) in out and len(out) < 6000
    for hook in REGISTERING if error is BAD[0] else REGISTERING[:1]:
        installed(monkeypatch, plugin(hook, raising(error)))
        message = warned(capsys, "show", "shapes_color")
        assert f"failed in ttmbench_{hook}: {by_type(error)}" in message and len(message) < 2300
        assert re.search(r"\(test_hostile\.py, line \d+\)", message)


@pytest.mark.parametrize("hook", REGISTERING)
@pytest.mark.parametrize("items", [None, 3, [None], [{}], [Path("gone")]], ids=repr)
def test_a_registering_hook_that_returns_nonsense(monkeypatch, capsys, hook, items):
    installed(monkeypatch, plugin(hook, lambda: items))
    message = warned(capsys, "show", "shapes_color")
    assert hook in message or (hook == "register_task_dirs" and "a Path to a folder of tasks" in message)


Odd = type("Odd", (BaseException,), {})  # no Exception: what catches errors lets it through
LISTENERS_RAISE = [ValueError("no\x1b[2J"), SystemExit(0), Odd("x"), GeneratorExit()]


@pytest.mark.parametrize("hook", ["run_started", "task_scored", "run_finished"])
@pytest.mark.parametrize("error", LISTENERS_RAISE, ids=by_type)
def test_a_listener_that_fails_is_warned_about_and_the_run_goes_on(folder_task, hook, error):
    evil = plugin(hook, raising(error))
    with pytest.warns(UserWarning, match=rf"plugin 'evil' failed in ttmbench_{hook}: {by_type(error)}"):
        done = simple_evaluate(Scorer(), str(folder_task() / "mine.yaml"), plugins=[("evil", evil)], bootstrap_iters=0)
    assert done["status"] == "done"


def test_an_interruption_in_a_hook_interrupts(folder_task):
    evil = plugin("run_started", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        simple_evaluate(Scorer(), str(folder_task() / "mine.yaml"), plugins=[("evil", evil)])


class Scorer:
    """A scorer by pairs that returns what it is told."""

    def __init__(self, scores=lambda n: np.arange(n, dtype=np.float32), declared=None):
        self._scores, self._declared = scores, declared or {"kind": "test"}

    def fingerprint(self):
        return self._declared() if callable(self._declared) else self._declared

    def score_pairs(self, images, captions):
        return self._scores(len(captions))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (lambda n: np.zeros(n + 1), "scores of shape"),
        (lambda n: np.zeros((n, 1)), "scores of shape"),
        (lambda n: ["1"] * n, "type <U1"),
        (lambda n: [None] * n, "type object"),
        (lambda n: np.zeros(n, dtype=complex), "type complex128"),
        (lambda n: np.zeros(n, dtype=bool), "type bool"),
        (lambda n: np.full(n, np.nan), "NaN or infinite"),
        (lambda n: np.full(n, 1e300), "NaN or infinite"),
        (lambda n: None, "scores of shape"),
        (raising(RuntimeError("out\nof \x1b[2J memory " + "x" * 10**6)), "task 'mine' with model 'Scorer' failed"),
        (raising(SystemExit(0)), "SystemExit"),
        (lambda n: torch.nn.Parameter(torch.ones(n)), r"score_pairs of Scorer .*\(test_hostile\.py, line \d+\)"),
    ],
)
def test_scores_that_no_model_should_return(folder_task, scores, message):
    with pytest.raises(TtmbenchError, match=message) as caught:
        simple_evaluate(Scorer(scores), str(folder_task() / "mine.yaml"))
    assert len(str(caught.value)) < 2300 and str(caught.value).isprintable()


@pytest.mark.parametrize("declared", [raising(SystemExit(0)), {"x": np.zeros(2)}, {"x": float("nan")}, {"x": {1, 2}}])
def test_a_fingerprint_that_is_none(folder_task, declared):
    with pytest.raises(TtmbenchError, match=r"fingerprint\(\) of Scorer failed"):
        simple_evaluate(Scorer(declared=declared), str(folder_task() / "mine.yaml"))


class Wide:
    """A dual encoder with a wrong shape at one place."""

    def __init__(self, wrong: str):
        self._wrong = wrong

    def fingerprint(self):
        return {}

    def prepare_images(self, images):
        return torch.ones(len(images) * (1 + (self._wrong == "images")), 3)

    def prepare_captions(self, captions):
        return torch.ones(len(captions) * (1 + (self._wrong == "captions")), 3)

    def encode_images(self, batch):
        return batch[:-1] if self._wrong == "features" else batch

    def encode_captions(self, batch):
        return batch

    def logits(self, images, captions):
        logits = images @ captions.T
        return {"logits": logits[:1, :1], "nan": logits * float("nan")}.get(self._wrong, logits)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(("features", r"features of shape \[\d+, 3\] for"), ("logits", r"shape \[1, 1\]"), ("nan", "NaN or infinite")),
        *((side, f"prepare_{side} must return one row per input") for side in ("images", "captions")),
    ],
)
def test_a_dual_encoder_with_wrong_shapes(folder_task, wrong, message):
    with pytest.raises(TtmbenchError, match=message):
        simple_evaluate(Wide(wrong), str(folder_task() / "mine.yaml"))


NO_IMAGE = raising(OSError("gone"))
GROUP = Group("g0", (ImageRef("a", NO_IMAGE), ImageRef("b", NO_IMAGE)), ("one", "two"))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (raising(KeyError("x")), "source 'evil' of plugin 'evil' failed: KeyError"),
        (raising(SystemExit(0)), "failed: SystemExit"),
        (lambda: [None], "NoneType in place of a group"),
        (lambda: 3, "failed: TypeError"),
        (lambda: [Group("g", GROUP.images, ("one", 2))], "is int, not a text"),
        (lambda: [Group("g", GROUP.images, ("one", "\ud800"))], "surrogate"),
        (lambda: [Group("g", GROUP.images, ("one", "a\0b"))], "null character"),
        (lambda: [Group("g", GROUP.images, ("one", "x" * 100_001))], "100001 characters"),
        (lambda: [GROUP], "image a of group g0 cannot be read: gone"),
    ],
)
def test_a_source_that_fails(monkeypatch, capsys, folder_task, groups, message):
    monkeypatch.setitem(sys.modules, "evil_source", SimpleNamespace(read=lambda request: groups()))
    installed(monkeypatch, plugin("register_sources", lambda: [SourceSpec("evil", "evil_source:read")]))
    assert main(["validate", str(folder_task(source={"kind": "evil"}, group={"shape": [2, 2]}) / "mine.yaml")]) == 4
    out, err = capsys.readouterr()
    assert message in out and "Traceback" not in err


def test_arguments_that_are_no_text_are_written_all_the_same(tmp_path, folder_task):
    task = folder_task() / "mine.yaml"
    done = simple_evaluate(Scorer(), str(task), output_path=str(tmp_path / "o.json"), command=["ttmbench", "\udcff"])
    assert json.loads((tmp_path / "o.json").read_text())["command"] == done["command"] == "ttmbench '?'"
