"""Ranks counted by blocks: what a loop over queries gives, whatever the block; and features in place of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ttmbench.errors import TtmbenchError
from ttmbench.model import DualEncoder
from ttmbench.scoring import ranking
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.dual_encoder import Features, Side, encode_captions, encode_classes, encode_images, image_scores
from ttmbench.scoring.inputs import Inputs
from ttmbench.scoring.ranking import best_candidates, rank_chosen, rank_queries
from ttmbench.types import Group, ImageRef


def by_loop(table: np.ndarray, queries: np.ndarray, candidates: np.ndarray) -> list[tuple[int, int, int]]:
    """strict, as_topk and above of each query, the slow way: sorted lists."""
    found = []
    for row, label in zip(table.tolist(), queries.tolist(), strict=True):
        best = max(score for score, one in zip(row, candidates, strict=True) if one == label)
        false = [score for score, one in zip(row, candidates, strict=True) if one != label]
        order = sorted(range(len(row)), key=lambda place: -row[place])  # stable: of equals the first wins
        place = next(rank for rank, one in enumerate(order) if candidates[one] == label)
        found.append((sum(one >= best for one in false), place, sum(one > best for one in false)))
    return found


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9), st.integers(1, 40))
def test_any_block_gives_what_a_loop_gives(seed, n_labels, more, block):
    rng = np.random.default_rng(seed)
    candidates = rng.permutation(np.concatenate([np.arange(n_labels), rng.integers(0, n_labels, more)]))
    queries = rng.integers(0, n_labels, 7)
    table = rng.integers(0, 4, (7, len(candidates))).astype(np.float32)  # few values, so that many tie
    ranks = rank_queries(lambda rows: table[rows], queries, candidates, block=block)
    assert list(zip(ranks.strict, ranks.as_topk, ranks.above, strict=True)) == by_loop(table, queries, candidates)
    assert ranks.true.tolist() == [int((candidates == label).sum()) for label in queries]
    topk = torch.from_numpy(table).argsort(dim=1, descending=True, stable=True).numpy()
    assert [int(np.argmax(candidates[one] == label)) for one, label in zip(topk, queries, strict=True)] == list(
        ranks.as_topk
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_the_best_candidates_are_those_of_a_stable_sort_and_rank_as_among_themselves(seed, k):
    rng = np.random.default_rng(seed)
    candidates, queries = rng.permutation(np.repeat(np.arange(4), 2)), np.arange(4)
    first = rng.integers(0, 5, (4, 8)).astype(np.float32)
    again = rng.integers(0, 3, (4, 8)).astype(np.float32)
    chosen = best_candidates(lambda rows: first[rows], 4, 8, k, "queries")
    expected = [sorted(sorted(range(8), key=lambda place, row=row: -row[place])[:k]) for row in first]
    assert chosen.tolist() == expected

    def score(rows: slice) -> np.ndarray:
        return np.take_along_axis(again[rows], chosen[rows].astype(int), axis=1)

    ranks = rank_chosen(score, chosen, queries, candidates)
    for query in queries:
        places = chosen[query]
        if query not in candidates[places]:
            assert ranks.strict[query] == ranks.above[query] == ranks.as_topk[query] == 8
        else:
            one = by_loop(again[query][places][None], queries[query : query + 1], candidates[places])[0]
            assert (ranks.strict[query], ranks.as_topk[query], ranks.above[query]) == one
    assert ranks.true.tolist() == [2] * 4 and ranks.candidates == 8


def test_a_score_that_is_none_is_named():
    table = np.zeros((3, 4), np.float32)
    table[2, 1] = np.nan
    with pytest.raises(TtmbenchError, match="number 2 of the images"):
        rank_queries(lambda rows: table[rows], np.arange(3), np.arange(4), "images")
    with pytest.raises(TtmbenchError, match=r"\[3, 4\] are expected"):
        rank_queries(lambda rows: table[rows, :3], np.arange(3), np.arange(4), "images")
    with pytest.raises(ValueError, match="number 1 has no true candidate"):
        rank_queries(lambda rows: table[rows], np.array([0, 9, 1]), np.arange(4))


def test_the_matrix_is_never_there():
    owner, asked = np.repeat(np.arange(2_000), 5), []

    def score(rows: slice) -> np.ndarray:
        asked.append((rows.stop - rows.start) * len(owner))
        return np.zeros((rows.stop - rows.start, len(owner)), np.float32)

    rank_queries(score, np.arange(2_000), owner, "images")
    assert max(asked) <= ranking.BLOCK and sum(asked) == 2_000 * 10_000


class Towers(DualEncoder):
    """A dual encoder of a few numbers."""

    def fingerprint(self):
        return "towers"

    def prepare_images(self, images):
        return torch.tensor([image.getpixel((0, 0)) for image in images], dtype=torch.float32)

    def prepare_captions(self, captions):
        return torch.tensor([[len(one), one.count("a"), one.count(" ")] for one in captions], dtype=torch.float32)

    def encode_images(self, prepared):
        return prepared

    def encode_captions(self, prepared):
        return prepared

    def logits(self, images, captions):
        return images @ captions.T


def test_equal_images_and_equal_captions_tie_to_the_last_bit():
    """77 pixels repeat among 80 images, under names of their own; each has one row of features."""

    def group(number: int) -> Group:
        image = ImageRef(str(number), lambda: Image.new("RGB", (2, 2), (number % 7, 3, number % 11)))
        return Group(str(number), (image,), (f"caption {number}",))

    model = Towers()
    images = encode_images(model, Inputs([*map(group, range(80))]), BatchSizer(16))
    assert len(images.features) == 77 and len(images) == 80
    captions = encode_captions(model, ["twice", "once", "twice"], BatchSizer(16))
    assert len(captions.features) == 2 and captions.rows.tolist() == [0, 1, 0]
    ranks = rank_queries(image_scores(model, Features(images, captions)), np.zeros(80, int), np.arange(3))
    assert (ranks.strict - ranks.above >= 1).all()  # the third caption is the first


def test_a_class_is_the_mean_of_normalised_prompts_as_open_clip_has_it():
    open_clip = pytest.importorskip("open_clip")
    names, templates = ["cat", "a dog", "bar bar", "cat"], ["a {}.", "banana {} a", "{}"]

    class Model:
        def encode_text(self, tokens, normalize):
            assert normalize
            return torch.nn.functional.normalize(tokens, dim=-1)

    model = Towers()
    ours = encode_classes(model, names, templates, BatchSizer(2))
    theirs = open_clip.build_zero_shot_classifier(Model(), model.prepare_captions, names, templates)
    assert torch.allclose(ours.features[torch.from_numpy(ours.rows)], theirs.T, atol=1e-6)
    assert ours.rows.tolist() == [0, 1, 2, 0]
    assert torch.allclose(encode_classes(model, names, templates, BatchSizer(64)).features, ours.features, atol=1e-6)


def test_logits_of_another_shape_are_refused():
    class Wrong(Towers):
        def logits(self, images, captions):
            return (images @ captions.T)[:, :1]

    side = Side(torch.ones(3, 2), np.arange(3))
    with pytest.raises(TtmbenchError, match=r"shape \[3, 1\] for 3 images and 3 captions"):
        image_scores(Wrong(), Features(side, side))(slice(0, 3))
