"""Stored scores: every format is recognised by content, and everything that is wrong is named."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from ttmbench.cli import main
from ttmbench.errors import DataError
from ttmbench.results.stored_files import read_scores, save_scores
from ttmbench.types import GroupShape, Scores

SQUARE = GroupShape(2, 2)
RNG = np.random.default_rng(0)


def write_labels(path: Path, scores: np.ndarray, skip=(), extra=()) -> Path:
    lines = [
        json.dumps({"label": f"{g}_c{c}_i{i}", "score": float(scores[g, i, c])})
        for g in range(scores.shape[0])
        for c in range(scores.shape[2])
        for i in range(scores.shape[1])
        if (g, c, i) not in skip
    ]
    path.write_text("\n".join([*lines, *extra]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def scores():
    return RNG.normal(size=(5, 2, 2)).astype(np.float32)


def test_all_formats_give_the_same_array(tmp_path, scores):
    np.savez(tmp_path / "a.bin", scores)
    (tmp_path / "a.bin.npz").rename(tmp_path / "a.bin")
    save_file({"anything": scores}, tmp_path / "b.bin")
    write_labels(tmp_path / "c.bin", scores)
    samples = [
        {"group_id": f"g{i}", "scores": block.tolist(), "captions": ["x", "y"]} for i, block in enumerate(scores)
    ]
    (tmp_path / "d.bin").write_text("".join(json.dumps(s) + "\n" for s in samples), encoding="utf-8")
    for name in "abcd":
        stored = read_scores(tmp_path / f"{name}.bin", SQUARE)
        assert np.array_equal(stored.scores["none"][0].groups.astype(np.float32), scores), stored.format
    assert read_scores(tmp_path / "d.bin", SQUARE).group_ids == [f"g{i}" for i in range(5)]


def test_saved_scores_come_back_bit_for_bit(tmp_path, scores):
    pairs = RNG.normal(size=(10, 10)).astype(np.float32)
    given = {"none": [Scores(scores, pairs)], "ttm": [Scores(scores + i, pairs * i) for i in range(12)]}
    save_scores(tmp_path / "x.safetensors", given, {"group_ids": json.dumps(list("abcde"))})
    stored = read_scores(tmp_path / "x.safetensors", SQUARE)
    assert stored.group_ids == list("abcde") and list(stored.scores) == ["none", "ttm"]
    for name, per_seed in given.items():
        for one, other in zip(per_seed, stored.scores[name], strict=True):
            assert np.array_equal(one.groups, other.groups) and np.array_equal(one.all_pairs, other.all_pairs)


@pytest.mark.parametrize("shape", [GroupShape(2, 2), GroupShape(1, 4), GroupShape(2, 3)])
@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_embeddings_give_scores_and_the_global_matrix(tmp_path, shape, ending):
    def unit(rows):
        x = RNG.normal(size=(rows, 8)).astype(np.float32)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    img, cap = unit(6 * shape.images), unit(6 * shape.captions)
    path = tmp_path / f"e.{ending}"
    np.savez(path, img=img, cap=cap) if ending == "npz" else save_file({"img": img, "cap": cap}, path)
    stored = read_scores(path, shape, logit_scale=10.0).scores["none"][0]
    for g in range(6):
        for i in range(shape.images):
            for c in range(shape.captions):
                row, column = g * shape.images + i, g * shape.captions + c
                expected = pytest.approx(10 * float(img[row] @ cap[column]), abs=1e-5)
                assert stored.groups[g, i, c] == expected and stored.all_pairs[row, column] == expected


def write_arrays(**arrays):
    def write(path, scores):
        with path.open("wb") as file:
            np.savez(file, **{name: of(scores) for name, of in arrays.items()})

    return write


def changed(value, *at):
    def change(scores):
        scores[at] = value
        return scores

    return change


def texts(content):
    return lambda path, scores: path.write_text(content, encoding="utf-8")


def labels(value=0.0, at=(0, 0, 0), skip=(), extra=()):
    return lambda path, scores: write_labels(path, changed(value, *at)(scores), skip, extra)


def truncated(path, scores):
    save_file({"s": scores}, path)
    path.write_bytes(path.read_bytes()[:-9])


def label(name, score=0.5):
    return json.dumps({"label": name, "score": score})


UNIT = np.eye(6, dtype=np.float32)
SAMPLE = json.dumps({"group_id": "7", "scores": [[1, 2], [3, 4]]}) + "\n"
WRONG = {
    "missing cell": (labels(skip={(1, 0, 1)}), "group 1 has no cell c0_i1"),
    "doubled cell": (labels(extra=[label("1_c0_i0")]), "cell c0_i0 twice"),
    "surplus cell": (labels(extra=[label("2_c2_i0")]), "c2_i0"),
    "NaN in lines": (labels(np.nan, (1, 0, 0)), "group 1"),
    "infinity in lines": (labels(np.inf, (2, 1, 1)), "group 2"),
    "no number": (texts(label("4_c0_i0", "high")), "group 4, cell c0_i0 has score 'high'"),
    "true is not a number": (texts(label("4_c0_i0", True)), "group 4"),
    "strange label": (texts(label("4-0-0")), "4-0-0"),
    "NaN in an array": (write_arrays(s=changed(np.nan, 1, 0, 0)), "group 1"),
    "infinity in an array": (write_arrays(s=changed(np.inf, 2, 1, 1)), "group 2"),
    "wrong shape": (write_arrays(s=lambda _: np.zeros((3, 2, 3))), "2 images, 2 captions"),
    "two arrays": (write_arrays(a=lambda s: s, b=lambda s: s), "one array"),
    "object array": (write_arrays(s=lambda _: np.array([{"a": 1}], dtype=object)), "not a readable npz"),
    "words": (write_arrays(s=lambda _: np.array([["a"]])), "not numbers"),
    "truncated": (truncated, "not a readable safetensors"),
    "norm": (write_arrays(img=lambda _: UNIT * 2, cap=lambda _: UNIT), "group 0: row 0 of 'img' has norm 2"),
    "counts": (write_arrays(img=lambda _: UNIT[:4], cap=lambda _: UNIT), "2 groups of 2x2"),
    "odd rows": (write_arrays(img=lambda _: UNIT[:3], cap=lambda _: UNIT[:4]), "no multiple of 2"),
    "empty": (texts(""), "is empty"),
    "not JSON": (texts("hello\n"), "line 1 is not JSON"),
    "list": (texts("[1]\n"), "not a JSON object"),
    "other keys": (texts('{"id": 1}\n'), "expected 'label' and 'score'"),
    "sample twice": (texts(SAMPLE + SAMPLE), "group 7 is duplicated"),
    "sample shape": (texts('{"group_id": 1, "scores": [[1, 2]]}\n'), "shape [1, 2]"),
    "sample NaN": (texts('{"group_id": "q", "scores": [[1, 2], [NaN, 4]]}\n'), "group q"),
    "absent": (lambda path, scores: None, "cannot be read"),
    "folder": (lambda path, scores: path.mkdir(), "cannot be read"),
}


@pytest.mark.parametrize(("make", "fact"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(tmp_path, make, fact):
    make(tmp_path / "x", np.random.default_rng(1).normal(size=(3, 2, 2)))
    with pytest.raises(DataError) as caught:
        read_scores(tmp_path / "x", SQUARE)
    assert fact in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.safetensors"])
def test_a_page_of_errors_is_no_array(tmp_path, name):
    (tmp_path / name).write_text("<html>not found</html>", encoding="utf-8")
    with pytest.raises(DataError, match=f"{name}: begins unlike"):
        read_scores(tmp_path / name, None)


def test_a_pickle_is_refused_with_its_conversion(tmp_path, scores, capsys):
    torch.save(torch.tensor(scores), tmp_path / "a.pt")
    torch.save(torch.tensor(scores), tmp_path / "b.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(scores))
    for name in ("a.pt", "b.pth", "c.pkl"):
        for task in ([], ["--task", "shapes_retrieval"]):
            assert main(["score", str(tmp_path / name), *task]) == 4
            assert f"torch.load('{name}', weights_only=True)" in capsys.readouterr().err
    save_file({"x": scores}, tmp_path / "e", {"pad": ""})
    content = (tmp_path / "e").read_bytes()
    header = content[8 : 8 + int.from_bytes(content[:8], "little")].rstrip()
    save_file({"x": scores}, tmp_path / "d", {"pad": "x" * (640 - len(header))})
    head = (tmp_path / "d").read_bytes()[:2]
    assert head == b"\x80\2", f"its header has 640 bytes, as pickles begin: {head!r}"
    assert read_scores(tmp_path / "d", SQUARE).format
