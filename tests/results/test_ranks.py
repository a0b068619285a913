"""Recall and accuracy from ranks: literal ranks, chance by counting, rules of ties, stored ranks of real models."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from support.documents import schema

import ttmbench
from ttmbench import stats
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.evaluator.score_files import score_stored
from ttmbench.results.numbers import as_entries
from ttmbench.results.ranks import RANK_METRICS, Ranks, chance, rank_values, summarise_ranks
from ttmbench.results.stored_files import save_ranks
from ttmbench.types import MetricSpec

SHARED = Path(__file__).resolve().parents[3] / "shared"
STORED = SHARED / "real-scores" / "retrieval_ranks"
METRICS = {metric.name: metric for metric in RANK_METRICS}

# Of four queries: found at once; tied with one that comes later; tied with one that comes earlier; sixth.
LITERAL = Ranks(np.array([0, 1, 1, 5]), np.array([0, 0, 1, 5]), np.array([0, 0, 0, 5]), np.ones(4, int), 10)


def test_strict_and_topk_ties_stand_side_by_side():
    entries = as_entries(summarise_ranks({"i2t": LITERAL}, list(METRICS.values()), 100, 0))
    shown = {key.removesuffix(",none"): value for key, value in entries["results"].items() if "stderr" not in key}
    assert shown["i2t_recall_at_1"] == 0.25 and shown["i2t_recall_at_1_as_topk"] == 0.5
    assert shown["i2t_recall_at_5"] == shown["i2t_recall_at_5_as_topk"] == 0.75
    assert shown["i2t_recall_at_10"] == 1.0
    assert shown["t2i_recall_at_1"] is None and entries["ci"]["t2i_recall_at_1,none"] is None
    assert entries["ties"]["i2t_recall_at_1,none"] == 2 and entries["ties"]["i2t_recall_at_5,none"] == 0
    assert entries["chance"]["i2t_recall_at_5"] == pytest.approx(0.5)
    assert set(entries["tracks"].values()) == {"zero_shot"}


@pytest.mark.parametrize(("candidates", "true", "k"), [(5, 2, 2), (6, 1, 3), (4, 3, 2), (7, 2, 6), (3, 1, 10)])
def test_chance_is_what_counting_all_orders_gives(candidates, true, k):
    orders = list(itertools.permutations(range(candidates)))
    share = np.mean([any(one < true for one in order[:k]) for order in orders])
    assert chance(k, Ranks(np.zeros(1), None, None, np.array([true]), candidates)) == pytest.approx(share, abs=1e-12)


def test_chance_is_the_mean_over_queries_that_differ():
    alone = [chance(2, Ranks(np.zeros(1), None, None, np.array([true]), 9)) for true in (1, 1, 4)]
    assert chance(2, Ranks(np.zeros(3), None, None, np.array([1, 1, 4]), 9)) == pytest.approx(np.mean(alone))
    assert chance(1, Ranks(np.zeros(1), None, None, np.array([1]), 1000)) == 0.001


def test_captions_of_one_image_are_one_observation():
    values = np.repeat(np.arange(20) % 2, 5)  # of each image all five captions, or none
    ranks = {"t2i": Ranks(values * 9, None, None, np.ones(100, int), 20)}
    metric = [METRICS["t2i_recall_at_1"]]
    (apart,) = summarise_ranks(ranks, metric, 100, 0)
    (together,) = summarise_ranks(ranks, metric, 100, 0, "wilson", {"t2i": np.repeat(np.arange(20), 5)})
    assert apart.value == together.value == 0.5
    assert together.stderr == pytest.approx(np.std(np.arange(20) % 2, ddof=1) / np.sqrt(20))
    assert together.stderr > 2 * apart.stderr
    assert together.interval[0] < apart.interval[0]


def test_a_plugins_metric_of_ranks_gives_one_fraction_a_query():
    good = MetricSpec("mrr", lambda ranks: 1 / (1 + ranks.strict), scope="i2t")
    assert rank_values(good, LITERAL).tolist() == [1.0, 0.5, 0.5, 1 / 6]
    with pytest.raises(TtmbenchError, match="fractions from 0 to 1 are expected"):
        rank_values(MetricSpec("wrong", lambda ranks: ranks.strict, scope="i2t", plugin="mine"), LITERAL)


def _published(model: str) -> dict[tuple[str, str], str]:
    with (SHARED / "published" / "published-2.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model and "recall" in row["metric"]]
    return {(row["task"], row["metric"]): row["percent"] for row in rows}


@pytest.mark.skipif(not STORED.is_dir(), reason="stored ranks of real models are not at hand")
@pytest.mark.parametrize(("task", "data"), [("coco_retrieval", "coco"), ("flickr30k_retrieval", "flickr")])
def test_stored_ranks_of_a_real_model_give_its_published_recalls(task, data):
    files = [STORED / f"{data}_clipcap_coco_test_{side}.txt.npy" for side in ("i2t", "t2i")]
    for order in (files, files[::-1]):
        document = score_stored(order, task, bootstrap_iters=100).document
        numbers = document["results"][task]
        known = {metric: value for (name, metric), value in _published("clipcap-coco").items() if name == task}
        assert len(known) == 6
        for metric, value in known.items():
            digits = len(value.partition(".")[2])
            assert f"{100 * numbers[f'{metric},none']:.{digits}f}" == value
        assert numbers["t2i_recall_at_1_as_topk,none"] is None
    ranking = document["ranking"][task]
    assert ranking["queries"] == {"t2i": ranking["queries"]["t2i"], "i2t": document["datasets"][task]["shape"][0]}
    # Flickr30k has five captions an image, so they can be put together; COCO has more of some.
    note = "which captions share an image is unknown"
    assert any(note in one for one in document["notes"][task]) == (task == "coco_retrieval")
    jsonschema.Draft202012Validator(schema("results")).validate(json.loads(json.dumps(document)))


@pytest.mark.skipif(not STORED.is_dir(), reason="stored ranks of real models are not at hand")
def test_captions_of_one_image_are_put_together_where_a_file_says_whose_they_are(tmp_path):
    """COCO has five captions of most images, six and seven of some: 25,010 of 5,000."""
    images, captions = (STORED / f"coco_clipcap_coco_test_{side}.txt.npy" for side in ("i2t", "t2i"))
    each = np.full(5000, 5)
    each[:8], each[8] = 6, 7
    owner = np.repeat(np.arange(5000), each)
    np.savez(tmp_path / "t2i.npz", ranks=np.load(captions), image_of_caption=owner)
    apart = score_stored([images, captions], "coco_retrieval", bootstrap_iters=100).document
    known = score_stored([images, tmp_path / "t2i.npz"], "coco_retrieval", bootstrap_iters=100).document
    key = "t2i_recall_at_1,none"
    assert known["results"]["coco_retrieval"][key] == apart["results"]["coco_retrieval"][key]
    error, narrow = (one["results"]["coco_retrieval"]["t2i_recall_at_1_stderr,none"] for one in (known, apart))
    hits = np.load(captions) < 1
    assert error == stats.standard_error(hits.astype(float), owner) and error > 1.2 * narrow
    widths = [np.diff(one["ci"]["coco_retrieval"][key])[0] for one in (known, apart)]
    assert widths[0] > 1.2 * widths[1]
    said = [" ".join(one["notes"]["coco_retrieval"]) for one in (known, apart)]
    assert "independent" not in said[0] and "too narrow; add 'image_of_caption'" in said[1]


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        ([0] * 7, "8 whole numbers"),
        ([0, 0, 1, 1, 2, 2, 3, 4], r"out of range \[0, 3\]"),
        ([0, 0, 1, 1, 2, 2, 2, 2], "image 3 has no caption"),
    ],
)
def test_images_of_captions_that_cannot_be_are_named(tmp_path, small_task, owner, message):
    np.savez(tmp_path / "t2i.npz", ranks=np.zeros(8, int), image_of_caption=owner)
    np.savez(tmp_path / "embeddings.npz", img=_unit(4, 1), cap=_unit(8, 2), image_of_caption=owner)
    for name in ("t2i", "embeddings"):
        with pytest.raises(DataError, match=message):
            score_stored([tmp_path / f"{name}.npz"], small_task, bootstrap_iters=0)


def test_images_of_captions_tell_how_many_are_true(tmp_path, small_task):
    np.savez(tmp_path / "t2i.npz", ranks=np.zeros(8, int), image_of_caption=np.array([0, 0, 0, 0, 0, 1, 2, 3]))
    np.save(tmp_path / "i2t.npy", np.zeros(4, int))
    paths = [tmp_path / "i2t.npy", tmp_path / "t2i.npz"]
    chance = score_stored(paths, small_task, bootstrap_iters=0).document["chance"]["small"]
    assert chance["i2t_recall_at_1"] == (5 + 1 + 1 + 1) / 4 / 8
    assumed = tmp_path / "t2i.npy"
    np.save(assumed, np.zeros(8, int))
    notes = score_stored([assumed], small_task, bootstrap_iters=0).document["notes"]["small"]
    assert any("taken to stand 2 an image" in note for note in notes)


def test_saved_ranks_know_images_of_the_same_pixels(tmp_path, small_task):
    ranks = {"i2t": Ranks(np.zeros(4, int), None, None, np.full(4, 2), 8)}
    ranks["t2i"] = Ranks(np.array([0, 0, 1, 1, 0, 1, 1, 0]), None, None, np.ones(8, int), 4)
    owner = {"i2t": np.arange(4), "t2i": np.repeat(np.arange(4), 2)}
    save_ranks(tmp_path / "x.safetensors", ranks, owner, {}, np.array([0, 1, 1, 2]))
    results = score_stored([tmp_path / "x.safetensors"], small_task, bootstrap_iters=0).results["small"]
    assert results["t2i_recall_at_1,none"] == 0.5
    expected = stats.standard_error((ranks["t2i"].strict < 1).astype(float), np.repeat([0, 1, 1, 2], 2))
    assert results["t2i_recall_at_1_stderr,none"] == expected


@pytest.fixture
def small_task(tmp_path) -> str:
    """A retrieval task of four images and eight captions that no data belong to."""
    path = tmp_path / "small.yaml"
    path.write_text(
        "task: small\nversion: 1\nkind: retrieval\nsource: {kind: folder, path: rows.jsonl}\n"
        "group: {n_groups: 4, n_captions: 8, images: [image], captions: captions}\n"
        "metrics: [i2t_recall_at_1, t2i_recall_at_1, i2t_recall_at_1_as_topk, t2i_recall_at_5]\n",
        encoding="utf-8",
    )
    return str(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1, 2], "has 3 ranks"),
        ([0, 1, 2, -1], "query 3 has rank -1"),
        ([0, 1.5, 2, 3], "query 1 has rank 1.5"),
        ([0, 9, 2, 3], "query 1 has rank 9"),
        ([[0, 1], [2, 3]], "expected ranks"),
    ],
)
def test_ranks_that_no_query_can_have_are_named(tmp_path, small_task, values, message):
    np.save(tmp_path / "i2t.npy", np.array(values, dtype=np.float64))
    with pytest.raises(DataError, match=message):
        score_stored([tmp_path / "i2t.npy"], small_task)


def test_too_many_files_and_two_of_one_side_are_refused(tmp_path, small_task):
    for name in ("i2t_a", "i2t_b", "other"):
        np.save(tmp_path / f"{name}.npy", np.zeros(4))
    for names in (["i2t_a", "i2t_b"], ["other"]):
        with pytest.raises(DataError, match="should have i2t or t2i, which ranks it holds"):
            score_stored([tmp_path / f"{name}.npy" for name in names], small_task)
    with pytest.raises(UsageError, match="give 2 files at most, not 3"):
        score_stored([tmp_path / "i2t_a.npy"] * 3, small_task)


def _unit(rows: int, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal((rows, 5)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_embeddings_and_a_matrix_give_what_a_loop_over_queries_gives(tmp_path, small_task):
    img, cap, owner = _unit(4, 1), _unit(8, 2), np.array([0, 0, 0, 1, 2, 2, 3, 3])
    scores = img @ cap.T
    np.savez(tmp_path / "e.npz", img=img, cap=cap, image_of_caption=owner)
    np.savez(tmp_path / "m.npz", scores=scores, image_of_caption=owner)
    i2t = [owner[np.argmax(row)] == image for image, row in enumerate(scores)]
    t2i = [np.argmax(column) == owner[caption] for caption, column in enumerate(scores.T)]
    for name in "em":
        found = ttmbench.score(tmp_path / f"{name}.npz", small_task)
        numbers = found.results["small"]
        assert numbers["i2t_recall_at_1,none"] == numbers["i2t_recall_at_1_as_topk,none"] == np.mean(i2t)
        assert numbers["t2i_recall_at_1,none"] == np.mean(t2i) and numbers["t2i_recall_at_5,none"] == 1.0
        assert found["datasets"]["small"]["shape"] == [4, 8]
        assert found["chance"]["small"]["i2t_recall_at_1"] == pytest.approx(np.mean([3, 1, 2, 2]) / 8)
