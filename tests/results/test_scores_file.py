"""Stored scores: every format is recognised by content, and everything that is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ttmbench.cli import main
from ttmbench.errors import DataError
from ttmbench.results.scores_file import read_scores, save_scores
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


def test_only_a_line_feed_ends_a_line(tmp_path, scores):
    """Captions may hold U+2028 and the like, which end lines elsewhere; samples are written without escaping them."""
    lines = [
        json.dumps({"group_id": f"g\u2028{i}\x85", "scores": block.tolist()}, ensure_ascii=False)
        for i, block in enumerate(scores)
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(lines), encoding="utf-8")
    stored = read_scores(tmp_path / "s.jsonl", SQUARE)
    assert stored.group_ids[1] == "g\u20281\x85" and np.array_equal(stored.scores["none"][0].groups, scores)


def test_order_of_lines_does_not_matter(tmp_path, scores):
    path = write_labels(tmp_path / "s.jsonl", scores)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], *lines[:0:-1]]), encoding="utf-8")
    stored = read_scores(path, SQUARE)
    order = [int(group) for group in stored.group_ids]
    assert np.allclose(stored.scores["none"][0].groups, scores[order])


def test_saved_scores_come_back_bit_for_bit(tmp_path, scores):
    pairs = RNG.normal(size=(10, 10)).astype(np.float32)
    given = {"none": [Scores(scores, pairs)], "ttm": [Scores(scores + i, pairs * i) for i in range(12)]}
    save_scores(tmp_path / "x.safetensors", given, {"group_ids": json.dumps(list("abcde"))})
    stored = read_scores(tmp_path / "x.safetensors", SQUARE)
    assert stored.group_ids == list("abcde") and list(stored.scores) == ["none", "ttm"]
    for name, per_seed in given.items():
        for one, other in zip(per_seed, stored.scores[name], strict=True):
            assert np.array_equal(one.groups, other.groups) and np.array_equal(one.all_pairs, other.all_pairs)


def test_scores_of_held_out_groups_come_back_with_their_positions(tmp_path, scores):
    given = {"none": [Scores(scores)], "holdout": [Scores(scores[[1, 3]] + 1)]}
    about = {"group_ids": json.dumps(list("abcde"))}
    path = tmp_path / "x.safetensors"
    save_scores(path, given, {**about, "subsets": json.dumps({"holdout": [1, 3]})})
    stored = read_scores(path, SQUARE)
    assert stored.subsets == {"holdout": [1, 3]}
    assert np.array_equal(stored.scores["holdout"][0].groups, scores[[1, 3]] + 1)
    for subsets, message in (
        ("{}", "2 groups of scores, but 5 group ids"),
        ('{"holdout": [1, 3, 4]}', "2 groups of scores, but 3 group ids"),
        ('{"holdout": [3, 1]}', "'subsets' of holdout are not increasing positions of its 5 groups"),
        ('{"holdout": [1, 5]}', "not increasing positions"),
        ('{"holdout": [1, 1]}', "not increasing positions"),
        ('{"holdout": [true, 3]}', "not increasing positions"),
        ('{"holdout": 3}', "not increasing positions"),
        ('{"none": [1, 3]}', "'subsets' of none"),
        ("[1]", "must map filters to positions"),
        ("{", "its 'subsets' cannot be read"),
    ):
        save_scores(path, given, {**about, "subsets": subsets})
        with pytest.raises(DataError, match=message):
            read_scores(path, SQUARE)


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
                expected = 10 * float(img[g * shape.images + i] @ cap[g * shape.captions + c])
                assert stored.groups[g, i, c] == pytest.approx(expected, abs=1e-5)
                assert stored.all_pairs[stored_row(g, i, shape.images), g * shape.captions + c] == pytest.approx(
                    expected, abs=1e-5
                )


def stored_row(group, image, images):
    return group * images + image


def wrong_files(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    scores = np.random.default_rng(1).normal(size=(3, 2, 2))
    nan, inf = scores.copy(), scores.copy()
    nan[1, 0, 0], inf[2, 1, 1] = np.nan, np.inf
    objects = tmp_path / "objects.npz"
    np.savez(objects, np.array([{"a": 1}], dtype=object))
    array = lambda name, **arrays: (np.savez(tmp_path / name, **arrays), tmp_path / f"{name}.npz")[1]  # noqa: E731
    text = lambda name, content: (  # noqa: E731
        (tmp_path / name).write_text(content, encoding="utf-8"),
        tmp_path / name,
    )[1]
    unit = np.eye(6, dtype=np.float32)
    truncated = tmp_path / "truncated.safetensors"
    save_file({"s": scores}, truncated)
    truncated.write_bytes(truncated.read_bytes()[:-9])
    doubled = json.dumps({"label": "1_c0_i0", "score": 0.5})
    surplus = json.dumps({"label": "2_c2_i0", "score": 0.5})
    sample = json.dumps({"group_id": "7", "scores": [[1, 2], [3, 4]]}) + "\n"
    return {
        "missing cell": (write_labels(tmp_path / "m", scores, skip={(1, 0, 1)}), "group 1 has no cell c0_i1"),
        "doubled cell": (write_labels(tmp_path / "d", scores, extra=[doubled]), "group 1 has cell c0_i0 twice"),
        "surplus cell": (write_labels(tmp_path / "s", scores, extra=[surplus]), "group 2 has a cell c2_i0"),
        "NaN in lines": (write_labels(tmp_path / "n", nan), "group 1"),
        "infinity in lines": (write_labels(tmp_path / "i", inf), "group 2"),
        "no number": (text("w", '{"label": "4_c0_i0", "score": "high"}\n'), "group 4, cell c0_i0 has score 'high'"),
        "true is not a number": (text("t", '{"label": "4_c0_i0", "score": true}\n'), "group 4"),
        "strange label": (text("l", '{"label": "4-0-0", "score": 1}\n'), "4-0-0"),
        "NaN in an array": (array("na", s=nan), "group 1"),
        "infinity in an array": (array("ia", s=inf), "group 2"),
        "wrong shape": (array("sh", s=np.zeros((3, 2, 3))), "2 images, 2 captions"),
        "two arrays": (array("two", a=scores, b=scores), "one array"),
        "object array": (objects, "not a readable npz"),
        "words": (array("wo", s=np.array([["a"]])), "not numbers"),
        "truncated": (truncated, "not a readable safetensors"),
        "norm": (array("no", img=unit * 2, cap=unit), "group 0: row 0 of 'img' has norm 2"),
        "counts": (array("co", img=unit[:4], cap=unit), "2 groups of 2x2"),
        "odd rows": (array("od", img=unit[:3], cap=unit[:4]), "no multiple of 2"),
        "nan row": (array("nr", img=np.where(unit > 0, np.nan, unit), cap=unit), "group 0"),
        "empty": (text("e", ""), "is empty"),
        "not JSON": (text("j", "hello\n"), "line 1 is not JSON"),
        "list": (text("li", "[1]\n"), "not a JSON object"),
        "other keys": (text("k", '{"id": 1}\n'), "expected 'label' and 'score'"),
        "sample twice": (text("st", sample + sample), "group 7 is duplicated"),
        "sample shape": (text("ss", '{"group_id": 1, "scores": [[1, 2]]}\n'), "group 1 has scores of shape [1, 2]"),
        "sample NaN": (text("sn", '{"group_id": "q", "scores": [[1, 2], [NaN, 4]]}\n'), "group q"),
        "absent": (tmp_path / "absent.jsonl", "cannot be read"),
        "folder": (tmp_path, "cannot be read"),
    }


def test_what_is_wrong_is_named(tmp_path):
    for case, (path, message) in wrong_files(tmp_path).items():
        with pytest.raises(DataError) as caught:
            read_scores(path, SQUARE)
        assert message in str(caught.value) and "\n" not in str(caught.value), case


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.safetensors"])
def test_a_page_of_errors_under_the_name_of_arrays_is_called_so(tmp_path, name):
    (tmp_path / name).write_text("<html>not found</html>", encoding="utf-8")
    with pytest.raises(DataError, match=f"{name}: begins unlike a file of {name[2:]} arrays"):
        read_scores(tmp_path / name, None)


def test_a_pytorch_or_pickle_file_says_what_is_read_and_how_to_convert_it(tmp_path, scores, capsys):
    import pickle

    import torch

    torch.save(torch.tensor(scores), tmp_path / "a.pt")
    torch.save(torch.tensor(scores), tmp_path / "b.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(scores))
    for name in ("a.pt", "b.pth", "c.pkl"):
        with pytest.raises(
            DataError, match=r"is a PyTorch or pickle file, .* npy, npz, safetensors and JSON lines are"
        ):
            read_scores(tmp_path / name, SQUARE)
        assert main(["score", str(tmp_path / name)]) == 4
        assert f"torch.load('{name}', weights_only=True)" in capsys.readouterr().err
        assert main(["score", str(tmp_path / name), "--task", "shapes_retrieval"]) == 4
        assert "is a PyTorch or pickle file" in capsys.readouterr().err
    save_file({"x": scores}, tmp_path / "d", {"pad": "x" * (640 - len(safe_header(tmp_path, scores)))})
    assert (tmp_path / "d").read_bytes()[:2] == b"\x80\2", "the length of its header is 640"
    assert read_scores(tmp_path / "d", SQUARE).format


def safe_header(folder: Path, scores: np.ndarray) -> bytes:
    """The header of a safetensors file of these scores with an empty ``pad``."""
    save_file({"x": scores}, folder / "e", {"pad": ""})
    content = (folder / "e").read_bytes()
    return content[8 : 8 + int.from_bytes(content[:8], "little")].rstrip()
