"""Every format that the package reads: how a small valid file is made, and the way of a user that it takes.

A way ends in an outcome: accepted or refused, with the faults that were seen on the way. Numbers that come out are
compared with a metric of four loops (`naive_metrics`) on what independent readers find in the same file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import random
import re
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TypeVar

import mutations
import numpy as np
import yaml
from PIL import Image
from support.documents import DIGEST, whole_document

from ttmbench._util.images import open_image
from ttmbench.cli import main
from ttmbench.config import make_run_config
from ttmbench.data.catalog import find_task
from ttmbench.data.download.archive import unpack
from ttmbench.data.rows import stored_image
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.score_task import load_data
from ttmbench.evaluator.settings import read_samples as read_ids
from ttmbench.model_adapters import embeddings
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring import fingerprint
from ttmbench.types import ImageRef

T = TypeVar("T")
GROUPS = 6
METRICS = ("text_score", "image_score", "group_score", "group_match")
_GENERIC = re.compile(
    r"Traceback \(most|shows where\)|of plugin 'ttmbench' failed|failed: \w+(Error|Exception)\b",
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass
class Outcome:
    """What became of a file."""

    accepted: bool = False
    said: str = ""  # the message of the refusal
    tracebacks: list[str] = field(default_factory=list)  # no TtmbenchError, generic lines, control characters
    wrong: list[str] = field(default_factory=list)  # numbers out of range, or others than the independent ones
    numbers: object = None  # what came out, for files whose meaning a change must not alter


@dataclass(frozen=True)
class Format:
    """A format: its name and way in the table, a valid file, and what reads it from a folder.

    ``meaning`` changes what a file means (None where only bytes are changed), ``neutral`` must not alter what comes
    out; ``share`` is the share of all files, relative to the other formats.
    """

    name: str
    way: str
    make: Callable[[random.Random], bytes]
    put: Callable[[Path, bytes], Outcome]
    meaning: mutations.Mutator | None = None
    neutral: mutations.Mutator | None = None
    share: float = 1.0


def command(*arguments: str) -> tuple[Outcome, str]:
    """Runs a command line in this process; what it printed, and whether it ended as a command should."""
    out, err, outcome = io.StringIO(), io.StringIO(), Outcome()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(arguments))
    except Exception as error:
        outcome.tracebacks.append(f"{type(error).__name__}: {error}")
        return outcome, ""
    outcome.accepted, outcome.said = code == 0, err.getvalue()
    printed = outcome.said + out.getvalue()
    if _GENERIC.search(printed) or code not in (0, 1, 2, 4):
        outcome.tracebacks.append(f"exit {code}: {outcome.said[-300:]}")
    if _CONTROL.search(printed):
        outcome.tracebacks.append(f"a control character was printed: {outcome.said[-200:]!r}")
    if code and not printed.strip():
        outcome.tracebacks.append(f"exit {code} without a word")
    return outcome, out.getvalue()


def function(call: Callable[[], T]) -> tuple[Outcome, T | None]:
    """Calls a reading function; anything but a TtmbenchError is a fault."""
    outcome, value = Outcome(), None
    try:
        value = call()
        outcome.accepted = True
    except TtmbenchError as error:
        outcome.said = str(error)
    except Exception as error:
        outcome.tracebacks.append(f"{type(error).__name__}: {error}"[:300])
    return outcome, value


def naive_metrics(table: np.ndarray) -> dict[str, Fraction]:
    """The four metrics of 2x2 groups by comparing numbers one by one, sums as fractions."""
    right = dict.fromkeys(METRICS, 0)
    for block in table.tolist():
        (a, b), (c, d) = [[Fraction(one) for one in row] for row in block]
        text, image = a > b and d > c, a > c and d > b
        for name, holds in zip(METRICS, (text, image, text and image, a + d > b + c), strict=True):
            right[name] += bool(holds)
    return {name: Fraction(count, len(table)) for name, count in right.items()}


def check_fractions(outcome: Outcome, numbers: Mapping[object, object]) -> None:
    for key, value in numbers.items():
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1):
            outcome.wrong.append(f"{key} is {value!r}")


def table_of(rng: random.Random) -> np.ndarray:
    values = [rng.choice((rng.gauss(20, 3), float(rng.randrange(3)))) for _ in range(4 * GROUPS)]  # with ties
    return np.array(values, dtype=np.float32).reshape(GROUPS, 2, 2)


def task_text(**changes: object) -> str:
    spec = {
        "task": "mine",
        "version": 1,
        "description": "words",
        "tag": ["one", "two"],
        "source": {"kind": "folder", "path": "groups.jsonl", "images": "images"},
        "group": {
            "shape": [2, 2],
            "id": "id",
            "images": ["image_0", "image_1"],
            "captions": ["caption_0", "caption_1"],
            "tags": ["kind"],
        },
        "metrics": list(METRICS),
        "ttm": {"defaults": {"lr": 1e-5, "epochs": 2, "schedule": "cosine", "betas": [0.9, 0.98]}},
    }
    return yaml.safe_dump({**spec, **changes}, sort_keys=False)


def rows(rng: random.Random) -> list[dict]:
    words = ("red", "blue", "left", "right", "dog", "cat")
    rows = []
    for index in range(2):
        first, second = rng.sample(words, 2)
        row = {"id": f"g{index}", "image_0": "0.png", "image_1": "1.png", "caption_0": f"a {first} {second} {index}"}
        rows.append({**row, "caption_1": f"a {second} {first} {index}", "kind": first})
    return rows


def jsonl(lines: list[dict]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def image(rng: random.Random, kind: str = "PNG") -> bytes:
    """A small image, of several modes and at times with several frames."""
    size = (rng.randrange(1, 24), rng.randrange(1, 24))
    noise = Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1]))
    modes = {"PNG": ("RGB", "L", "P", "RGBA", "1", "I;16"), "JPEG": ("RGB", "L", "CMYK"), "GIF": ("P", "L")}
    mode = rng.choice(modes.get(kind, ("RGB", "RGBA")))
    grey = np.asarray(noise.convert("L"), np.uint16)
    image = Image.fromarray(grey * 257) if mode == "I;16" else noise.convert(mode)
    stream = io.BytesIO()
    more = {}
    if kind in ("GIF", "WEBP", "PNG") and mode in ("P", "RGB") and rng.random() < 0.3:
        more = {"save_all": True, "append_images": [image.rotate(90), image.rotate(180)]}
    if kind in ("JPEG", "PNG", "WEBP") and rng.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = rng.choice((1, 3, 6, 8, 0, 9, 255))
        more["exif"] = exif
    image.save(stream, kind, **more)
    return stream.getvalue()


def folder_task(folder: Path, **files: bytes) -> Path:
    """A folder task with good parts; ``files`` replaces some of them."""
    rng = random.Random(0)
    (folder / "images").mkdir()
    for index in "01":
        (folder / "images" / f"{index}.png").write_bytes(files.get("image", image(random.Random(index))))
    (folder / "groups.jsonl").write_bytes(files.get("rows", jsonl(rows(rng))))
    task = folder / "mine.yaml"
    task.write_bytes(files.get("task", task_text().encode()))
    return task


# ---- stored scores and answers: `ttmbench score`


def _score(folder: Path, file: Path, task: str | None = None) -> tuple[Outcome, dict]:
    (folder / "mine.yaml").write_text(task or task_text())
    out = folder / "out.json"
    outcome, _ = command(
        *("score", str(file), "--task", str(folder / "mine.yaml"), "-o", str(out), "--bootstrap_iters", "20")
    )
    if not outcome.accepted:
        return outcome, {}
    document = json.loads(out.read_text(encoding="utf-8"), parse_constant=lambda name: outcome.wrong.append(name))
    numbers = document["results"]["mine"]
    check_fractions(outcome, numbers)
    for ends in document["ci"]["mine"].values():
        check_fractions(outcome, dict(enumerate(ends or ())))
    outcome.numbers = numbers
    return outcome, numbers


def scored(name: str, reference: Callable[[bytes], np.ndarray]) -> Callable[[Path, bytes], Outcome]:
    """`ttmbench score` on a file, and the same numbers by another reader and four loops."""

    def put(folder: Path, content: bytes) -> Outcome:
        (folder / name).write_bytes(content)
        outcome, numbers = _score(folder, folder / name)
        if not outcome.accepted:
            return outcome
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = naive_metrics(reference(content))
        except Exception as error:
            outcome.wrong.append(f"accepted what another reader cannot read: {type(error).__name__}: {error}"[:200])
            return outcome
        for metric, value in expected.items():
            if numbers.get(f"{metric},none") != float(value):
                outcome.wrong.append(f"{metric} is {numbers.get(f'{metric},none')}, should be {float(value)}")
        return outcome

    return put


def make_labels(rng: random.Random) -> bytes:
    cells = np.ndenumerate(table_of(rng))
    return jsonl([{"label": f"{g}_c{c}_i{i}", "score": float(score)} for (g, i, c), score in cells])


def read_labels(content: bytes) -> np.ndarray:
    cells: dict[str, dict[tuple[int, int], float]] = {}
    for one in _lines_of(content):
        group, caption, image = re.fullmatch(r"(?s)(.+)_c([0-9]+)_i([0-9]+)", one["label"]).groups()  # type: ignore[union-attr]
        cells.setdefault(group, {})[int(image), int(caption)] = one["score"]
    return np.array([[[block[i, c] for c in range(2)] for i in range(2)] for block in cells.values()], dtype=float)


def _lines_of(content: bytes) -> list[dict]:
    return [json.loads(line) for line in content.decode("utf-8-sig").split("\n") if line.strip()]


def sample_lines(rng: random.Random) -> list[dict]:
    table = table_of(rng)
    lines = []
    for index, block in enumerate(table):
        about = {"group_id": f"g{index}", "filter": "none", "seed_index": 0, "seed": None, "captions": ["a", "b"]}
        values = {name: float(value) for name, value in naive_metrics(block[None]).items()}
        lines.append({**about, "scores": block.tolist(), "metrics": values})
    return lines


def read_samples(content: bytes) -> np.ndarray:
    lines = _lines_of(content)
    return np.array([one["scores"] for one in lines if one.get("filter", "none") == "none"], dtype=float)


def make_npz(rng: random.Random) -> bytes:
    stream = io.BytesIO()
    (np.savez if rng.random() < 0.7 else np.savez_compressed)(stream, scores=table_of(rng).astype(rng.choice("fde")))
    return stream.getvalue()


def npz_changed(content: bytes, rng: random.Random) -> bytes:
    """Arrays of other shapes, types and numbers; headers that lie."""
    array = read_npz(content, raw=True)
    kind = rng.randrange(9)
    flat = array.reshape(-1)
    if kind == 0:
        flat[rng.randrange(flat.size)] = rng.choice((np.nan, np.inf, 6e4, -1))
    elif kind == 1:
        array = array.astype(rng.choice(("i4", "u1", "c8", "?", "S4", "U3", ">f4", "M8[s]", "f2", "g", "i8")))
    elif kind == 2:
        array = array.reshape(rng.choice(((-1,), (-1, 2), (1, -1, 2, 2), (-1, 4, 1)))) if flat.size else array
        array = array[:0] if rng.random() < 0.2 else array
    elif kind == 3:
        array = np.asfortranarray(array)
    elif kind == 4:
        array = array.astype("i8") + rng.choice((0, 2**53, 2**60))
    stream, arrays = io.BytesIO(), {"scores": array}
    if kind == 5:
        arrays = {"img": array.reshape(-1, 2), "cap": array.reshape(-1, 2)}
    elif kind == 6:
        arrays = {**arrays, rng.choice(("other", "../x", "a/b", "\x1b[2J")): array}
    np.savez(stream, **arrays)
    if kind < 7:
        return stream.getvalue()
    header = (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rng.choice(('10**12', 10**12, -6, '6, 2, 2, 0', 7))},)}}"
    )
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + array.tobytes()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("scores.npy", member if kind == 7 else member + b"\0" * 10_000_000)
    return stream.getvalue()


def repacked(content: bytes, rng: random.Random) -> bytes:
    """The same members of a zip, packed otherwise."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        with zipfile.ZipFile(stream, "w", kind) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
    return stream.getvalue()


def read_npz(content: bytes, raw: bool = False) -> np.ndarray:
    """The one array of a file, or products of its features, by numpy's own reader."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return next(iter(arrays.values())).copy() if raw else _from_arrays(arrays)


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if {"img", "cap"} <= set(arrays):
        images, captions = (
            arrays[name].astype(np.float32).reshape(-1, 2, arrays[name].shape[1]) for name in ("img", "cap")
        )
        return np.matmul(images, captions.transpose(0, 2, 1)).astype(np.float64)
    named = [array for name, array in arrays.items() if name.startswith("scores.none.")]
    cube = named[0] if named else next(array for array in arrays.values() if array.ndim == 3)
    assert cube.dtype.kind in "fiu" and np.isfinite(cube.astype(float)).all(), "numbers"
    return cube.astype(np.float64)


def make_safetensors(rng: random.Random) -> bytes:
    from safetensors.numpy import save

    about = {"format": "ttmbench-scores", "group_ids": json.dumps([f"g{index}" for index in range(GROUPS)])}
    return save({"scores.none.0": table_of(rng)}, metadata={"ttmbench": json.dumps(about)})


def read_safetensors(content: bytes) -> np.ndarray:
    from safetensors.numpy import load

    return _from_arrays(load(content))


def header_changed(content: bytes, rng: random.Random) -> bytes:
    """A safetensors header that lies: lengths, offsets, names, metadata; or other numbers, which are to be seen."""
    length = int.from_bytes(content[:8], "little")
    if rng.random() < 0.4:
        numbers = bytearray(content)
        for _ in range(rng.choice((1, 4, 30))):
            numbers[rng.randrange(8 + length, len(numbers))] = rng.randrange(256)
        return bytes(numbers)
    text = mutations.json_mutated(content[8 : 8 + length], rng)
    declared = rng.choice((len(text), len(text), len(text), 0, 2**63, len(text) + 8, 10**8))
    return declared.to_bytes(8, "little") + text + content[8 + length :]


def make_features(rng: random.Random) -> bytes:
    draws = np.array([[rng.gauss(0, 1) for _ in range(8)] for _ in range(4 * GROUPS)])
    img, cap = np.split((draws / np.linalg.norm(draws, axis=1, keepdims=True)).astype(np.float32), 2)
    stream = io.BytesIO()
    np.savez(stream, img=img, cap=cap)
    return stream.getvalue()


def put_features(folder: Path, content: bytes) -> Outcome:
    file = folder / "features.npz"
    file.write_bytes(content)
    outcome, model = function(lambda: embeddings.load(path=str(file), device="cpu"))
    if model is not None:
        for side in (model.stored_images(), model.stored_captions()):
            lengths = np.linalg.norm(side.numpy().astype(np.float64), axis=1)
            if not (np.abs(lengths - 1) < 1e-4).all():
                outcome.wrong.append("a stored feature has no unit norm")
        outcome.numbers = model.fingerprint()["features_sha256"]
    return outcome


def make_answers(rng: random.Random) -> bytes:
    items = {}
    for index in range(GROUPS):
        caption, negative = f"a dog {index}", f"a cat {index}"
        answer = {"multiple_choice_answer": rng.choice((caption, negative)), "free_form_answer": "it is"}
        items[str(index)] = {"caption": caption, "negative_caption": negative, "answer": answer}
    return json.dumps(items).encode()


def put_answers(folder: Path, content: bytes) -> Outcome:
    """`ttmbench score` on stored answers, and the share of right ones by comparing texts."""
    file = folder / "answers.json"
    file.write_bytes(content)
    task = task_text(group={"shape": [1, 2], "images": ["image_0"], "captions": ["a", "b"]}, metrics=["text_score"])
    outcome, numbers = _score(folder, file, task)
    if outcome.accepted and "text_score,choice" in numbers:
        right = []
        for item in json.loads(content.decode("utf-8-sig")).values():
            if isinstance(item, dict):
                answer = item["answer"]
                chosen = answer.get("multiple_choice_answer") if isinstance(answer, dict) else answer
                right.append(str(chosen).strip() == str(item["caption"]).strip())
        if numbers["text_score,choice"] != float(Fraction(sum(right), len(right))):
            outcome.wrong.append(
                f"text_score is {numbers['text_score,choice']}, {sum(right)} of {len(right)} are right"
            )
    return outcome


def make_colorswap(rng: random.Random) -> bytes:
    entries = []
    for index in range(GROUPS):
        log = {"correct_answer": "A", "caption_1": "a red dog", "caption_2": "a blue dog"}
        entry = {"id": index, "log_1": log, "log_2": {**log, "correct_answer": "B"}}
        entries.append({**entry, "response_image_1": rng.choice("AB"), "response_image_2": rng.choice("AB")})
    return json.dumps(entries).encode()


def put_colorswap(folder: Path, content: bytes) -> Outcome:
    (folder / "answers.json").write_bytes(content)
    return _score(folder, folder / "answers.json")[0]


# ---- tasks, settings, ids


def put_task(folder: Path, content: bytes) -> Outcome:
    task = folder_task(folder, task=content)
    outcome, _ = command("validate", str(task))
    shown, text = command("show", str(task), "--json")
    outcome.tracebacks += shown.tracebacks
    if shown.accepted:
        outcome.numbers = json.loads(text)
    return outcome


def put_config(folder: Path, content: bytes) -> Outcome:
    """`ttmbench run --config FILE --dry_run`."""
    file = folder / "config.yaml"
    file.write_bytes(content)
    outcome, outcome.numbers = command("run", "--config", str(file), "--dry_run")
    return outcome


def make_config(rng: random.Random) -> bytes:
    settings = {
        "model": "tiny-clip",
        "tasks": rng.choice((["shapes_color"], "shapes_color,shapes_place")),
        "ttm": True,
        "ttm_args": {"epochs": 2, "lr": 1e-4, "betas": [0.9, 0.99]},
        "seeds": [0, 1],
        "limit": 4,
        "batch_size": 8,
        "model_args": {"api_key": "sk-very-secret-key"} if rng.random() < 0.2 else {},
        "assertions": ["shapes_color.group_match,ttm>=0.1"],
    }
    return yaml.safe_dump(settings, sort_keys=False).encode()


def put_ids(folder: Path, content: bytes) -> Outcome:
    file = folder / "ids.json"
    file.write_bytes(content)

    def call() -> list[str]:
        registry = build_registry()
        config = make_run_config({"model": "tiny-clip", "tasks": ["shapes_color"], "samples": str(file)})
        groups = load_data(registry, config, find_task(registry, "shapes_color"), read_ids(str(file))).groups
        return [group.group_id for group in groups]

    outcome, outcome.numbers = function(call)
    if outcome.accepted:
        wanted = {str(one) for one in json.loads(content.decode("utf-8-sig"))}
        if set(outcome.numbers) != wanted:
            outcome.wrong.append(f"{len(outcome.numbers)} groups for {len(wanted)} ids")
    return outcome


def make_ids(rng: random.Random) -> bytes:
    return json.dumps([f"color-0-{number:04d}" for number in rng.sample(range(20), rng.randrange(1, 5))]).encode()


def rows_in(ending: str) -> Callable[[Path, bytes], Outcome]:
    def put(folder: Path, content: bytes) -> Outcome:
        source = {"kind": "folder", "path": f"groups.{ending}", "images": "images"}
        task = folder_task(folder, task=task_text(source=source).encode())
        (folder / f"groups.{ending}").write_bytes(content)
        outcome, text = command("validate", str(task))
        outcome.numbers = text.partition(": ")[2] if outcome.accepted else None
        return outcome

    return put


def rows_csv(rng: random.Random) -> bytes:
    found = rows(rng)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]))
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().encode()


def requoted(content: bytes, rng: random.Random) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=rng.choice(("\n", "\r\n"))).writerows(
        csv.reader(io.StringIO(content.decode()))
    )
    return text.getvalue().encode()


# ---- images and archives


def put_image(folder: Path, content: bytes) -> Outcome:
    """An image of a folder task: `ttmbench validate`, and the pixels against Pillow's own conversion."""
    task = folder_task(folder, image=content)
    outcome, _ = command("validate", str(task))
    file = folder / "images" / "0.png"
    seen, image = function(lambda: fingerprint.open_upright(ImageRef("0.png", lambda: open_image(file)), "g0"))
    outcome.tracebacks += seen.tracebacks
    outcome.accepted = seen.accepted
    if image is not None:
        outcome.numbers = (image.size, image.tobytes())
        if image.mode != "RGB" or min(image.size) < 1 or image.width * image.height > 89_000_000:
            outcome.wrong.append(f"an image of mode {image.mode} and {image.size} pixels")
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = Image.open(io.BytesIO(content))
            plain.load()
            if plain.mode in ("RGB", "L", "1", "CMYK") and plain.getexif().get(0x0112, 1) == 1:
                if plain.convert("RGB").tobytes() != image.tobytes():
                    outcome.wrong.append("other pixels than Pillow's")
    return outcome


def make_npy(rng: random.Random) -> bytes:
    pixels = np.frombuffer(rng.randbytes(3 * 12 * 9), np.uint8).reshape(9, 12, 3)
    stream = io.BytesIO()
    np.save(stream, np.asfortranarray(pixels) if rng.random() < 0.3 else pixels)
    return stream.getvalue()


def put_npy(folder: Path, content: bytes) -> Outcome:
    """An image that lies as an array, against numpy's own reader."""
    file = folder / "0.npy"
    file.write_bytes(content)
    outcome, image = function(lambda: fingerprint.open_upright(stored_image("0.npy", file, "ignore", "rgb"), "g0"))
    if image is not None:
        outcome.numbers = (image.size, image.tobytes())
        plain = np.load(io.BytesIO(content), allow_pickle=False)
        if plain.dtype != np.uint8 or plain.shape != (image.height, image.width, 3):
            outcome.wrong.append(f"an image of {image.size} pixels from an array {plain.dtype} {plain.shape}")
        elif np.ascontiguousarray(plain).tobytes() != image.tobytes():
            outcome.wrong.append("other pixels than numpy's")
    return outcome


OTHER_KINDS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(sentinel/secret.txt) (r) file\nshowpage\n%%EOF\n",
    b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    b"%PDF-1.4\n1 0 obj<<>>endobj\ntrailer<<>>\n%%EOF",
    b"GIMP brush",
    b"P6\n100000 100000\n255\n",
    b"P6\n0 10\n255\n",
    b"BM" + b"\0" * 60,
    b"",
)


def png_of(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG whose header promises so many pixels; its rows are all zero as far as they go."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    data = content or zlib.compress(b"\0" * min(1_000_000, (width + 1) * height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def image_changed(content: bytes, rng: random.Random) -> bytes:
    """Another kind of file, a header that promises too many pixels, a strip, an end that lacks."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(OTHER_KINDS)
    if kind == 1:
        return png_of(*rng.choice(((60_000, 60_000), (2**31 - 1, 2**31 - 1), (12_000, 12_000), (0, 5), (2**20, 1))))
    if kind == 2:
        return png_of(rng.randrange(1, 400), rng.randrange(1, 400), rng.randbytes(30))
    if kind == 3:
        return content[: -rng.randrange(1, 20)]
    return content + rng.randbytes(rng.randrange(1, 2000))


def png_repacked(content: bytes, rng: random.Random) -> bytes:
    stream = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        if getattr(image, "is_animated", False) or image.getexif():
            return content
        image.save(stream, "PNG", compress_level=rng.choice((0, 1, 9)))
    return stream.getvalue()


def make_zip(rng: random.Random) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for name in ("data/rows.json", "data/images/a.jpg", "data/images/b.jpg"):
            file.writestr(name, rng.randbytes(rng.randrange(1, 200)))
    return stream.getvalue()


def make_tar(rng: random.Random, more: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=rng.choice(("w", "w:gz", "w:bz2", "w:xz"))) as file:
        for name in ("data/rows.json", "data/images/a.jpg"):
            content = rng.randbytes(rng.randrange(1, 200))
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
        for entry in more:
            file.addfile(entry, io.BytesIO(b"x" * entry.size))
    return stream.getvalue()


BAD_NAMES = (
    *("../evil", "/tmp/evil", "data/../../sentinel/evil", "..\\evil", "C:\\evil", "data/ROWS.JSON", "data/rows.json"),
    *("data/" + "x" * 300, "data/" + "d/" * 200 + "x", "\0", "data/\x1b[2J", "NUL", "data/rows.json/x", "./data/./y"),
    *("", "data/\u00e9", "data/e\u0301", "~/.bashrc", "data/\U0001f600", "data/a:b"),
)


def tar_changed(content: bytes, rng: random.Random) -> bytes:
    """One more member: a link, a device, a name that leads out."""
    kinds = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    entry = tarfile.TarInfo(rng.choice((*BAD_NAMES, "data/link", "data/z")).replace("\0", "_"))
    entry.type = rng.choice((*kinds, tarfile.DIRTYPE))
    entry.linkname = rng.choice((*BAD_NAMES, "data/rows.json", "rows.json", "data/link", "/etc/passwd")).replace(
        "\0", "_"
    )
    entry.size = rng.choice((0, 10)) if entry.type == tarfile.REGTYPE else 0
    return make_tar(rng, (entry,))


def zip_changed(content: bytes, rng: random.Random) -> bytes:
    """One more member: a link, a device, a name that leads out, a bomb."""
    stream = io.BytesIO(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as file:
            entry = zipfile.ZipInfo(rng.choice((*BAD_NAMES, "data/link")) or "x")
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = rng.choice((0, 0o120777, 0o020666, 0o010666, 0o100644, 0o040755)) << 16
            target = rng.choice((b"rows.json", b"../../sentinel/secret.txt", b"/etc/passwd", b"link"))
            bomb = b"\0" * 70_000_000 if rng.random() < 0.03 else target
            file.writestr(entry, bomb)
    return stream.getvalue()


def put_archive(folder: Path, content: bytes) -> Outcome:
    """`data.download.archive.unpack`, which `ttmbench download` calls; every file against the standard library's."""
    archive, target = folder / "x.archive", folder / "out"
    archive.write_bytes(content)
    outcome, done = function(lambda: unpack(archive, target))
    if done is None:
        if target.exists() or [path.name for path in folder.iterdir()] != ["x.archive"]:
            outcome.wrong.append("a refused archive left something behind")
        return outcome
    paths = [path for path in sorted(target.rglob("*")) if not path.is_dir()]
    if any(path.is_symlink() or not path.is_file() for path in paths) or len(paths) != done.files:
        outcome.wrong.append("something else than files was unpacked")
    outcome.numbers = sorted(path.read_bytes() for path in paths)
    with contextlib.suppress(Exception):
        if not set(outcome.numbers) <= _members(content):
            outcome.wrong.append("content that the archive does not have")
    return outcome


def _members(content: bytes) -> set[bytes]:
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            return {file.read(name) for name in file.namelist()}
    with tarfile.open(fileobj=io.BytesIO(content)) as file:
        return {file.extractfile(entry).read() for entry in file if entry.isreg()}  # type: ignore[union-attr]


# ---- results of runs


def make_document(rng: random.Random) -> bytes:
    """A results document as a run writes it, with the keys that other commands read."""
    lines, numbers = sample_lines(rng), dict[str, float]()
    for metric in METRICS:
        numbers[f"{metric},none"] = sum(line["metrics"][metric] for line in lines) / len(lines)
        numbers[f"{metric}_stderr,none"] = 0.1
    samples = {"kind": "samples", "sha256": DIGEST, "bytes": 1}
    document = whole_document(
        {"mine": numbers},
        tracks={"mine": {f"{metric},none": "zero_shot" for metric in METRICS}},
        artifacts={"run_samples_mine.jsonl": samples},
        **{"n-samples": {"mine": {"original": GROUPS, "effective": GROUPS}}, "model_name": "tiny"},
    )
    document["datasets"]["mine"]["n_groups"] = GROUPS
    return json.dumps(document).encode()


def put_document(folder: Path, content: bytes) -> Outcome:
    """`ttmbench leaderboard` and `ttmbench compare` on a results document."""
    outcome, board = _leaderboard(folder, content)
    if outcome.accepted:
        known = {
            value for task in json.loads(content.decode("utf-8-sig"))["results"].values() for value in task.values()
        }
        if not {row["value"] for row in board} <= known:
            outcome.wrong.append("a row that the document does not have")
        outcome.numbers = board
    (folder / "good.json").write_bytes(make_document(random.Random(2)))
    (folder / "run_samples_mine.jsonl").write_bytes(jsonl(sample_lines(random.Random(2))))
    good, given = str(folder / "good.json"), str(folder / "runs" / "run.json")
    outcome.tracebacks += command("compare", good, given, "--bootstrap_iters", "5")[0].tracebacks
    return outcome


def _leaderboard(folder: Path, document: bytes, *options: str) -> tuple[Outcome, list[dict]]:
    """`ttmbench leaderboard` on one document, and its rows; nothing given is markup, a formula or a command in it."""
    (folder / "runs").mkdir()
    (folder / "runs" / "run.json").write_bytes(document)
    (folder / "runs" / "run_samples_mine.jsonl").write_bytes(jsonl(sample_lines(random.Random(1))))
    outcome, _ = command("leaderboard", str(folder / "runs"), "-o", str(folder / "board"), *options)
    if not outcome.accepted:
        return outcome, []
    html, table, latex, board = (
        (folder / "board" / f"leaderboard.{ending}").read_text(encoding="utf-8")
        for ending in ("html", "csv", "tex", "json")
    )
    if "<script>alert" in html:
        outcome.wrong.append("a document's text is markup in the page")
    for row in csv.reader(io.StringIO(table)):
        if any(cell[:1] in ("=", "+", "-", "@") and not re.fullmatch(r"-?[0-9.e-]+", cell) for cell in row):
            outcome.wrong.append(f"a formula in the CSV: {row}")
    if "\\input{/" in latex:
        outcome.wrong.append("a command in the LaTeX")
    rows = json.loads(board)["rows"]
    check_fractions(outcome, {f"row {index}": row["value"] for index, row in enumerate(rows)})
    return outcome, rows


def put_samples(folder: Path, content: bytes) -> Outcome:
    """`ttmbench compare` on samples, and the means by adding up."""
    for name, samples in (("one", jsonl(sample_lines(random.Random(3)))), ("two", content)):
        (folder / name).mkdir()
        (folder / name / "run.json").write_bytes(make_document(random.Random(3)))
        (folder / name / "run_samples_mine.jsonl").write_bytes(samples)
    out = folder / "out.json"
    outcome, _ = command(
        *("compare", str(folder / "one" / "run.json"), str(folder / "two" / "run.json"), "--bootstrap_iters", "5"),
        *("--filters", "none,none", "-o", str(out)),
    )
    if not outcome.accepted:
        return outcome
    found = json.loads(out.read_text(encoding="utf-8"))["comparisons"][0]["rows"]
    lines = _lines_of(content)
    known = {line["group_id"] for line in sample_lines(random.Random(3))}
    for row in found:
        check_fractions(outcome, {key: row[key] for key in ("baseline", "other", "p", "p_holm")})
        values = [
            line["metrics"][row["metric"]]
            for line in lines
            if line["filter"] == "none" and line["metrics"].get(row["metric"]) is not None and line["group_id"] in known
        ]
        if not values or abs(row["other"] - sum(values) / len(values)) > 1e-12:
            outcome.wrong.append(f"{row['metric']} is {row['other']}, {len(values)} lines say otherwise")
    outcome.numbers = [(row["metric"], row["other"]) for row in found]
    return outcome


def make_cells(rng: random.Random) -> bytes:
    """Per-sample scores as others publish them: a row a group, a column a pair."""
    rows = [{f"c{c}_i{i}": float(block[i, c]) for i in range(2) for c in range(2)} for block in table_of(rng)]
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def read_cells(content: bytes) -> np.ndarray:
    rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
    named = [{key.strip().lower(): value for key, value in row.items() if key} for row in rows]
    return np.array(
        [[[float(row[f"c{c}_i{i}"]) for c in range(2)] for i in range(2)] for row in named if any(row.values())]
    )


def make_log(rng: random.Random) -> bytes:
    """A sample log as lmms-eval writes it."""
    common = {"target": "Yes", "filtered_resps": "Yes", "doc_hash": "a", "input": "Is it?"}
    scores = [float(rng.random() < 0.5) for _ in range(8)]
    return jsonl(
        {"doc_id": at, **common, "input_media": [f"{at // 2}.png"], "acc": {"score": score}}
        for at, score in enumerate(scores)
    )


def put_log(folder: Path, content: bytes) -> Outcome:
    """`ttmbench compare` on two logs, and the mean by adding up."""
    paths = []
    for name, log in (("one", make_log(random.Random(3))), ("two", content)):
        (folder / name).mkdir()
        paths.append(folder / name / "samples_mine_2026-01-01T00-00-00.1.jsonl")
        paths[-1].write_bytes(log)
    words = ("--allow_different", "--bootstrap_iters", "5", "-o", str(folder / "out.json"))
    outcome, _ = command("compare", *map(str, paths), *words)
    if not outcome.accepted:
        return outcome
    rows = json.loads((folder / "out.json").read_text(encoding="utf-8"))["comparisons"][0]["rows"]
    for row in rows:
        check_fractions(outcome, {key: row[key] for key in ("baseline", "other", "p", "p_holm")})
    known = {str(at) for at in range(8)}
    values = [one["acc"]["score"] for one in _lines_of(content) if str(one.get("doc_id")) in known and "acc" in one]
    found = next((row["other"] for row in rows if row["metric"] == "acc"), None)
    if found is not None and abs(found - sum(values) / len(values)) > 1e-12:
        outcome.wrong.append(f"acc is {found}, {len(values)} lines say otherwise")
    outcome.numbers = [(row["metric"], row["other"]) for row in rows]
    return outcome


def make_published(rng: random.Random) -> bytes:
    lines = ["source,table,task,model,method,metric,percent,std_percent,track"]
    for metric in METRICS:
        numbers = f"{rng.uniform(0, 100):.2f},{rng.choice(('', '0.5'))}"
        lines.append(f"A paper,Table 1,mine,clip,raw,{metric},{numbers},zero_shot")
    return ("\n".join(lines) + "\n").encode()


def put_published(folder: Path, content: bytes) -> Outcome:
    """`ttmbench leaderboard --published`."""
    table = folder / "published.csv"
    table.write_bytes(content)
    outcome, board = _leaderboard(folder, make_document(random.Random(4)), "--published", str(table))
    if outcome.accepted:
        rows = [row for row in board if row["published"]]
        given = [float(line["percent"]) / 100 for line in csv.DictReader(io.StringIO(content.decode("utf-8-sig")))]
        if not {row["value"] for row in rows} <= set(given):
            outcome.wrong.append("a published row that the table does not have")
        outcome.numbers = sorted((row["metric"], row["value"]) for row in rows)
    return outcome


# ---- tables of the hub


def make_parquet(rng: random.Random) -> bytes:
    import datasets

    def images(*seeds: int) -> list[dict[str, object]]:
        return [{"bytes": image(random.Random(seed)), "path": None} for seed in seeds]

    columns = {"id": ["g0", "g1"], "image_0": images(1, 2), "image_1": images(3, 4), "kind": ["x", "y"]}
    columns |= {"caption_0": [f"a red {rng.random()}", "a left dog"], "caption_1": [f"a blue {rng.random()}", "a dog"]}
    kinds = {name: datasets.Image() if "image" in name else datasets.Value("string") for name in columns}
    stream = io.BytesIO()
    with contextlib.redirect_stderr(io.StringIO()):  # a bar
        datasets.Dataset.from_dict(columns, features=datasets.Features(kinds)).to_parquet(stream)
    return stream.getvalue()


def put_parquet(folder: Path, content: bytes) -> Outcome:
    """`ttmbench validate` on a task of kind huggingface whose path is a local folder."""
    (folder / "tables").mkdir()
    (folder / "tables" / "test.parquet").write_bytes(content)
    source = {"kind": "huggingface", "path": str(folder / "tables"), "split": "test"}
    task = folder / "mine.yaml"
    task.write_text(task_text(source=source))
    outcome, text = command("validate", str(task), "--offline")
    outcome.numbers = text.partition("first:")[2] if outcome.accepted else None
    return outcome


def json_relaid(content: bytes, rng: random.Random) -> bytes:
    """The same JSON with other spaces and, for objects of keys, another order."""

    def turned(value):
        if isinstance(value, dict):
            return {key: turned(one) for key, one in sorted(value.items(), reverse=True)} if "id" in value else value
        return [turned(one) for one in value] if isinstance(value, list) else value

    return (b"\xef\xbb\xbf" if rng.random() < 0.3 else b"") + json.dumps(
        turned(json.loads(content)), indent=rng.choice((1, 4))
    ).encode()


def lines_relaid(content: bytes, rng: random.Random) -> bytes:
    """The same lines with their keys in another order, further spaces and empty lines."""
    found = [
        json.dumps(dict(reversed(json.loads(line).items())), separators=(" ,  ", ":  "))
        for line in content.splitlines()
    ]
    return rng.choice(("\n", "\r\n", "\n\n")).join([*found, ""]).encode()


def yaml_relaid(content: bytes, rng: random.Random) -> bytes:
    """The same YAML, in flow style, with comments."""
    text = yaml.safe_dump(yaml.safe_load(content), default_flow_style=rng.random() < 0.5, sort_keys=True)
    return f"# a comment\n{text}".encode()


_MEANT = {"meaning": mutations.json_mutated, "neutral": json_relaid}
_LINES = {"meaning": mutations.lines_mutated, "neutral": lines_relaid}
_YAML = {"meaning": mutations.yaml_mutated, "neutral": yaml_relaid}
_CSV = {"meaning": mutations.csv_mutated, "neutral": requoted}
FORMATS = (
    Format("task YAML", "validate, show", lambda rng: task_text().encode(), put_task, **_YAML, share=1.5),
    Format("config YAML", "run --config --dry_run", make_config, put_config, **_YAML),
    Format("samples JSON", "read_samples, load_data", make_ids, put_ids, **_MEANT, share=0.5),
    Format("scores JSONL", "score", make_labels, scored("s.jsonl", read_labels), **_LINES, share=1.5),
    Format(
        *("samples JSONL", "score", lambda rng: jsonl(sample_lines(rng)), scored("s.jsonl", read_samples)), **_LINES
    ),
    Format("scores npz", "score", make_npz, scored("s.npz", read_npz), npz_changed, repacked, 1.5),
    Format(
        "scores safetensors", "score", make_safetensors, scored("s.st", read_safetensors), header_changed, share=1.5
    ),
    Format("embeddings npz", "score", make_features, scored("e.npz", read_npz), npz_changed, repacked),
    Format("embeddings model", "embeddings.load", make_features, put_features, npz_changed, repacked),
    Format("answers JSON", "score", make_answers, put_answers, mutations.json_mutated, json_relaid),
    Format("ColorSwap JSON", "score", make_colorswap, put_colorswap, mutations.json_mutated, json_relaid),
    Format("results JSON", "leaderboard, compare", make_document, put_document, **_MEANT),
    Format("per-sample CSV", "score", make_cells, scored("s.csv", read_cells), **_CSV),
    Format("harness JSONL", "compare", make_log, put_log, **_LINES),
    Format("compared JSONL", "compare", lambda rng: jsonl(sample_lines(rng)), put_samples, **_LINES),
    Format("published CSV", "leaderboard", make_published, put_published, **_CSV),
    Format("rows JSONL", "validate", lambda rng: jsonl(rows(rng)), rows_in("jsonl"), **_LINES),
    Format("rows JSON", "validate", lambda rng: json.dumps(rows(rng)).encode(), rows_in("json"), **_MEANT),
    Format("rows CSV", "validate", rows_csv, rows_in("csv"), **_CSV),
    Format("PNG", "validate, open_upright", image, put_image, image_changed, png_repacked),
    *(
        Format(name, "validate, open_upright", partial(image, kind=name.upper()), put_image, image_changed)
        for name in ("JPEG", "WebP", "GIF")
    ),
    Format("NPY image", "open_upright", make_npy, put_npy, image_changed),
    Format("zip", "unpack", make_zip, put_archive, zip_changed, repacked),
    Format("tar", "unpack", make_tar, put_archive, tar_changed),
    Format("parquet", "validate", make_parquet, put_parquet, share=0.3),
)
