"""Retrieval and classification from the command to every reader of results; stops and goes on; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from support.documents import schema

import ttmbench
from ttmbench.cli import main
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import find_task
from ttmbench.errors import DataError, UsageError
from ttmbench.hookspecs import hookimpl
from ttmbench.model_adapters import hf
from ttmbench.plugins.registry import build_registry
from ttmbench.types import AdapterSpec

QUICK = {"device": "cpu", "bootstrap_iters": 50}


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    common = {**QUICK, "output_path": str(folder), "log_samples": True, "save_scores": True}
    return ttmbench.simple_evaluate("tiny-clip", "shapes_retrieval,shapes_naming", **common)


def _pool(limit: int) -> tuple[list[Image.Image], list[str], np.ndarray]:
    """Images and captions of the task, and the number of each caption's image."""
    registry = build_registry()
    groups = load_task_data(registry, find_task(registry, "shapes_retrieval"), limit).groups
    captions = [caption for group in groups for caption in group.captions]
    return [group.images[0].open() for group in groups], captions, np.repeat(np.arange(len(groups)), 2)


def _table(limit: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """The whole matrix of logits of the built-in model, and whose each caption is: the slow way."""
    model, (images, captions, owner) = hf.load(pretrained="tiny_clip", device="cpu"), _pool(limit)
    with torch.inference_mode():
        encoded = model.encode_images(model.prepare_images(images))
        return model.logits(encoded, model.encode_captions(model.prepare_captions(captions))).numpy(), owner


def test_recalls_are_those_of_the_whole_matrix(ranked):
    table, owner = _table()
    numbers = ranked.results["shapes_retrieval"]
    for k in (1, 5, 10):
        i2t = [image in owner[np.argsort(-row)[:k]] for image, row in enumerate(table)]
        t2i = [owner[caption] in np.argsort(-column)[:k] for caption, column in enumerate(table.T)]
        assert numbers[f"i2t_recall_at_{k},none"] == pytest.approx(np.mean(i2t))
        assert numbers[f"t2i_recall_at_{k},none"] == pytest.approx(np.mean(t2i))


def test_the_document_says_what_was_ranked(ranked):
    document = json.loads(ranked.path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    about = document["ranking"]
    assert about["shapes_retrieval"]["queries"] == {"i2t": 100, "t2i": 200}
    assert about["shapes_retrieval"]["candidates"] == {"i2t": 200, "t2i": 100}
    assert about["shapes_naming"]["classes"]["n_classes"] == 64 and about["shapes_naming"]["classes"]["doubled"] == {}
    assert document["datasets"]["shapes_retrieval"]["shape"] == [100, 200]
    assert document["n-samples"]["shapes_naming"] == {"original": 128, "effective": 128, "clusters": 128}
    assert document["track"] == "zero_shot" and document["chance"]["shapes_naming"]["accuracy_top1"] == 1 / 64


def test_samples_have_a_line_a_query_with_its_ranks(ranked):
    (path,) = ranked.path.parent.glob("samples_shapes_retrieval_*")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 300 and {line["query"] for line in lines} == {"image", "caption"}
    caption = next(line for line in lines if line["group_id"] == "describe-0-0007/1")
    assert caption["cluster"] == "describe-0-0007" and len(caption["captions"]) == 1
    assert set(caption["metrics"]) == {name for name in caption["metrics"] if name.startswith("t2i")}
    for line in lines:
        for name, value in line["metrics"].items():
            k = int(name.removesuffix("_as_topk").rsplit("_", 1)[1])
            assert value == float(line["ranks"]["as_topk" if name.endswith("topk") else "strict"] < k)


def test_every_reader_of_results_takes_it(ranked, capsys, tmp_path):
    path = str(ranked.path)
    for command in (
        ["compare", path, path],
        ["report", str(ranked.path.parent), "-o", str(tmp_path / "page.html")],
        ["leaderboard", str(ranked.path.parent)],
        *(["export", path, "--to", form] for form in ("numbers", "latex", "lm-eval", "model-index")),
    ):
        assert main(command) == 0, command
    shown = capsys.readouterr().out
    assert "200 of 200" in shown and "t2i recall at 10 & " in shown and "t2i_recall_at_10" in shown
    assert "i2t_recall_at_1" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "differ from the local data" not in shown
    rows = ttmbench.compare(ranked.path, ranked.path)
    assert {row["groups"] for row in rows if row["metric"].startswith("t2i")} == {200}
    assert {row["clusters"] for row in rows if row["metric"].startswith("t2i")} == {100}
    (saved,) = ranked.path.parent.glob("ranks_shapes_retrieval_*")
    again = ttmbench.score(saved, "shapes_retrieval", bootstrap_iters=50)
    assert again.results == {"shapes_retrieval": ranked.results["shapes_retrieval"]}
    assert again["ci"]["shapes_retrieval"] == ranked["ci"]["shapes_retrieval"]


@pytest.mark.parametrize("option", [{"ttm": True}, {"methods": ["overfit"]}])
@pytest.mark.parametrize("task", ["shapes_retrieval", "shapes_naming"])
def test_test_time_matching_is_refused_in_one_line(task, option, tmp_path):
    with pytest.raises(UsageError, match="the task has no groups") as error:
        ttmbench.simple_evaluate("tiny-clip", task, output_path=str(tmp_path / "none"), **option, **QUICK)
    assert "\n" not in str(error.value) and not (tmp_path / "none").exists()


def test_a_part_is_a_smaller_pool_and_says_so():
    found = ttmbench.simple_evaluate("tiny-clip", "shapes_retrieval", limit=20, **QUICK)
    table, owner = _table(20)
    i2t = [owner[np.argmax(row)] == image for image, row in enumerate(table)]
    assert found.results["shapes_retrieval"]["i2t_recall_at_1,none"] == pytest.approx(np.mean(i2t))
    assert found["datasets"]["shapes_retrieval"]["shape"] == [20, 40]
    assert any("a smaller pool" in note for note in found["notes"]["shapes_retrieval"])
    assert found["chance"]["shapes_retrieval"]["t2i_recall_at_1"] == 1 / 20


def test_batch_size_moves_no_number(ranked):
    found = ttmbench.simple_evaluate("tiny-clip", "shapes_retrieval,shapes_naming", batch_size=7, **QUICK)
    assert found.results == ranked.results


def test_ranks_come_from_the_cache(tmp_path, monkeypatch, ranked):
    common = {**QUICK, "use_cache": str(tmp_path / "cache"), "model_name": "m"}
    tasks = ["shapes_retrieval", "shapes_naming"]
    first = ttmbench.simple_evaluate("tiny-clip", tasks, **common)
    model = hf.load(pretrained="tiny_clip", device="cpu")
    monkeypatch.setattr(type(model), "encode_images", lambda *_: pytest.fail("the model was asked"))
    again = ttmbench.simple_evaluate(model, tasks, **common)
    assert again.results == first.results == ranked.results and again["ci"] == first["ci"]
    assert all("date" in again["datasets"][task]["from_store"] for task in tasks)


def test_the_same_command_keeps_what_is_done(tmp_path, capsys):
    arguments = ["--model", "tiny-clip", "--tasks", "shapes_retrieval", "-o", str(tmp_path), "--log_samples"]
    assert main(arguments) == 0 and main(arguments) == 0
    assert "every task is done" in capsys.readouterr().err


class PixelsAndLetters:
    """Scores pairs by nothing but numbers; it counts them."""

    def __init__(self) -> None:
        self.pairs = 0

    def fingerprint(self):
        return {"kind": "pixels and letters"}

    def score_pairs(self, images, captions):
        self.pairs += len(captions)
        means = [np.asarray(image, dtype=np.float64).mean() for image in images]
        return np.array([(a * 7 + len(one) * 13) % 17 for a, one in zip(means, captions, strict=True)], np.float32)


def _pair_table(limit: int) -> tuple[np.ndarray, np.ndarray]:
    images, captions, owner = _pool(limit)
    return np.stack([PixelsAndLetters().score_pairs([image] * len(captions), captions) for image in images]), owner


def test_a_model_of_pairs_ranks_a_small_pool_whole():
    found = ttmbench.simple_evaluate(PixelsAndLetters(), "shapes_retrieval", limit=15, **QUICK)
    table, owner = _pair_table(15)
    best = np.array([table[image][owner == image].max() for image in range(15)])
    higher = [(table[image][owner != image] >= best[image]).sum() for image in range(15)]
    assert found.results["shapes_retrieval"]["i2t_recall_at_5,none"] == np.mean(np.array(higher) < 5)
    ties = [(table[image][owner != image] == best[image]).any() for image in range(15)]
    assert any(ties) and found["ties"]["shapes_retrieval"]["i2t_recall_at_1,none"] is not None


def test_the_best_of_a_dual_encoder_are_ranked_again_by_pairs():
    scorer = PixelsAndLetters()
    rerank = {"model": "tiny-clip", "k": 6}
    found = ttmbench.simple_evaluate(scorer, "shapes_retrieval", limit=30, rerank=rerank, **QUICK)
    first, owner = _table(30)
    again, _ = _pair_table(30)
    every = set()
    for k, name in ((1, "i2t_recall_at_1"), (5, "i2t_recall_at_5"), (10, "i2t_recall_at_10")):
        right = []
        for image in range(30):
            chosen = np.sort(np.argsort(-first[image], kind="stable")[:6])
            every |= {(image, caption) for caption in chosen}
            own = owner[chosen] == image
            scores = again[image][chosen]
            right.append(own.any() and (scores[~own] >= scores[own].max()).sum() < k)
        assert found.results["shapes_retrieval"][f"{name},none"] == pytest.approx(np.mean(right))
    for caption in range(60):
        every |= {(image, caption) for image in np.argsort(-first[:, caption], kind="stable")[:6]}
    assert scorer.pairs == len(every) < 30 * 60
    about = found["ranking"]["shapes_retrieval"]["rerank"]
    assert about["model"] == "tiny-clip" and about["k"] == 6 and about["fingerprint"]["weights_sha256"]


def test_ranks_of_pairs_are_kept_with_the_first_stage_and_k(tmp_path):
    common = {**QUICK, "use_cache": str(tmp_path / "cache"), "limit": 12, "model_name": "m"}

    def pairs(**rerank: object) -> int:
        scorer = PixelsAndLetters()
        ttmbench.simple_evaluate(scorer, "shapes_retrieval", rerank={"model": "tiny-clip", **rerank}, **common)
        return scorer.pairs

    first = pairs(k=4)
    assert first > 0 and pairs(k=4) == 0
    assert pairs(k=5) > 0 and pairs(k=4, pretrained="tiny_clip_seed1") > 0 and pairs(k=4) == 0


class Generative(PixelsAndLetters):
    """Has log P(t), of which ``alpha`` is taken off; it states nothing of that in its fingerprint."""

    prior = "noise"

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def prepare_images(self, images):
        return [np.asarray(image, dtype=np.float64).mean() for image in images]

    def prepare_captions(self, captions):
        return list(captions)

    def encode_images(self, prepared):
        return prepared

    def score_prepared(self, images, captions):
        self.pairs += len(captions)
        return np.array([(a * 7 + len(one) * 13) % 17 for a, one in zip(images, captions, strict=True)], np.float32)

    def log_priors(self, captions, noise_images=None):
        return np.array([len(one) % 5 for one in captions], np.float32)


def test_generative_scores_rank_without_what_the_caption_alone_gives(tmp_path):
    common = {**QUICK, "use_cache": str(tmp_path / "cache"), "limit": 15, "model_name": "m"}
    table, owner = _pair_table(15)
    taken = np.array([len(caption) % 5 for caption in _pool(15)[1]])
    for alpha in (0.0, 1.0, 0.0):
        numbers = ttmbench.simple_evaluate(Generative(alpha), "shapes_retrieval", **common).results["shapes_retrieval"]
        scores = table - np.float32(alpha) * taken
        right = [(row[owner != i] >= row[owner == i].max()).sum() < 5 for i, row in enumerate(scores)]
        assert numbers["i2t_recall_at_5,none"] == pytest.approx(np.mean(right)), alpha


@pytest.mark.parametrize(
    ("model", "task", "rerank", "message"),
    [
        ("pairs", "shapes_retrieval", {}, "has 20000 pairs, more than 100; --rerank model=MODEL gives it the best"),
        ("tiny-clip", "shapes_retrieval", {"model": "tiny-clip"}, "ranks all candidates itself; omit --rerank"),
        ("tiny-clip", "shapes_naming", {"model": "tiny-clip"}, "--rerank is for retrieval"),
        ("pairs", "shapes_naming", {}, "needs a model that encodes images and captions"),
        ("pairs", "shapes_retrieval", {"model": "unable"}, "cannot rank all candidates"),
        ("pairs", "shapes_retrieval", {"k": 3}, "must have model=NAME"),
        ("pairs", "shapes_retrieval", {"model": "tiny-clip", "k": 0}, "k must be a whole number from 1"),
        ("words", "shapes_retrieval", {}, "answers in words and has no scores"),
    ],
)
def test_what_cannot_be_ranked_is_said_in_a_line(model, task, rerank, message, monkeypatch):
    monkeypatch.setattr("ttmbench.evaluator.ranking_task.MAX_GLOBAL_PAIRS", 100)

    class Plugin:
        @hookimpl
        def ttmbench_register_adapters(self):
            return [AdapterSpec("unable", f"{__name__}:PixelsAndLetters")]

    words = {"answer": lambda self, questions: ["1"] * len(questions), "fingerprint": lambda self: {}}
    given = {"pairs": PixelsAndLetters(), "words": type("Words", (ttmbench.ChoiceModel,), words)()}.get(model, model)
    with pytest.raises(UsageError, match=message):
        ttmbench.simple_evaluate(given, task, rerank=rerank, plugins=[("mine", Plugin())], **QUICK)


def test_stored_features_rank_without_an_image(tmp_path):
    rng = np.random.default_rng(0)
    img, cap = rng.standard_normal((100, 6)).astype(np.float32), rng.standard_normal((200, 6)).astype(np.float32)
    np.savez(tmp_path / "f.npz", img=img, cap=cap)
    run = {"model_args": {"path": str(tmp_path / "f.npz")}, "save_scores": True, "output_path": str(tmp_path / "o")}
    found = ttmbench.simple_evaluate("embeddings", "shapes_retrieval", **run, **QUICK)
    again = ttmbench.simple_evaluate("embeddings", "shapes_retrieval", **run, **QUICK)
    assert again.results == found.results and again["timing"] == found["timing"], "resumed: the data are the same"
    unit = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (img, cap)]
    np.savez(tmp_path / "u.npz", img=unit[0], cap=unit[1])
    assert ttmbench.score(tmp_path / "u.npz", "shapes_retrieval").results == found.results
    part = ttmbench.simple_evaluate("embeddings", "shapes_retrieval", model_args=run["model_args"], limit=10, **QUICK)
    assert part["datasets"]["shapes_retrieval"]["shape"] == [10, 20]
    label = rng.integers(0, 64, 128)
    np.savez(tmp_path / "c.npz", img=rng.standard_normal((128, 6)), cap=rng.standard_normal((64, 6)), label=label)
    naming = ttmbench.simple_evaluate(
        "embeddings", "shapes_naming", model_args={"path": str(tmp_path / "c.npz")}, **QUICK
    )
    assert naming["ranking"]["shapes_naming"]["candidates"] == {"class": 64}
    with pytest.raises(DataError, match="has 100 images, but task 'shapes_naming' has 128"):
        ttmbench.simple_evaluate("embeddings", "shapes_naming", model_args=run["model_args"], **QUICK)


def _class_task(folder: Path, names: list[str], labels: list[object], **classes: object) -> str:
    (folder / "images").mkdir()
    rows = []
    for number, label in enumerate(labels):
        Image.new("RGB", (8, 8), (40 * number, 10, 200)).save(folder / "images" / f"{number}.png")
        rows.append({"image": f"{number}.png", "label": label})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    spec = {
        "task": "mine",
        "version": 1,
        "kind": "classification",
        "source": {"kind": "folder", "path": "rows.jsonl", "images": "images"},
        "group": {"n_groups": len(labels), "images": ["image"], "label": "label"},
        "classes": {"names": names, **classes},
        "metrics": ["accuracy_top1", "accuracy_top1_as_topk"],
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    return str(folder / "mine.yaml")


def test_classes_of_a_users_own_with_two_of_one_name(tmp_path, capsys):
    task = _class_task(tmp_path, ["a red circle", "a blue star", "a red circle"], [0, 2, "a blue star", 1])
    assert main(["validate", task]) == 0
    assert "4 images of 3 among 3 classes" in capsys.readouterr().out
    found = ttmbench.simple_evaluate("tiny-clip", task, **QUICK)
    assert found["ranking"]["mine"]["classes"]["doubled"] == {"a red circle": [0, 2]}
    assert found["notes"]["mine"] == [
        "classes of one name always tie (a red circle: 0, 2): 2 images, which accuracy_top1 counts as wrong"
    ]
    lines = ttmbench.simple_evaluate("tiny-clip", task, output_path=str(tmp_path / "o"), log_samples=True, **QUICK)
    (samples,) = lines.path.parent.glob("samples_*")
    ranks = [json.loads(line)["ranks"] for line in samples.read_text(encoding="utf-8").splitlines()]
    for number in (0, 1):  # images of a doubled class: the other class of the name ties
        assert ranks[number]["strict"] == ranks[number]["above"] + 1
    assert ranks[1]["as_topk"] == ranks[1]["strict"]  # the class that comes second never wins


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, 3], "'3' of 1 is neither a number below 3"), (["a red circle"], "is the name of several classes")],
)
def test_a_label_that_is_no_class_is_named(tmp_path, labels, message):
    task = _class_task(tmp_path, ["a red circle", "a blue star", "a red circle"], labels)
    with pytest.raises(DataError, match=message):
        ttmbench.simple_evaluate("tiny-clip", task, **QUICK)
