"""Groups with several true captions an image, or with more images than captions: metrics, chance levels, matching."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from ttmbench import chance, metrics
from ttmbench._arrays import count_matchings, given_captions
from ttmbench.matching import injections, match_global, match_groups
from ttmbench.metrics import METRICS
from ttmbench.plugins.registry import metric_for
from ttmbench.results.summary import MethodScores, summarise
from ttmbench.types import GroupShape, MetricSpec, Scores

ALL = {spec.name: spec for spec in METRICS}
SHAPES = [(2, 2, 1), (2, 4, 1), (4, 4, 1), (1, 3, 2), (1, 4, 2), (1, 4, 3), (2, 4, 2), (2, 5, 2), (1, 5, 2)]
#  caption, its rewording, the wrong one; then what is right by text score, original accuracy, and brittle
TRIPLES = [
    ((3, 2, 1), True, True, False),
    ((2, 3, 1), True, True, False),
    ((3, 1, 2), False, True, True),
    ((1, 3, 2), False, False, True),
    ((2, 1, 3), False, False, False),
    ((1, 2, 3), False, False, False),
    ((2, 2, 1), True, True, False),  # the true ones may tie with each other
    ((3, 2, 2), False, True, False),  # a tie with the wrong one is wrong, and not between
    ((2, 3, 2), False, False, False),
    ((2, 2, 2), False, False, False),
]


@pytest.mark.parametrize(("row", "both", "original", "brittle"), TRIPLES)
def test_two_captions_that_are_true_and_one_that_is_not(row, both, original, brittle):
    scores = np.array([[row]], dtype=float)
    for metric in (metrics.text_score, metrics.group_score, metrics.group_match, metrics.individual_match):
        assert metric(scores, true_captions=2).tolist() == [both], metric.__name__
    assert metrics.original_accuracy(scores, true_captions=2).tolist() == [original]
    assert metrics.brittleness(scores, true_captions=2).tolist() == [brittle]
    tied = [metrics.text_score_ties(scores, 2)[0], metrics.original_accuracy_ties(scores, 2)[0]]
    assert tied == [min(row[:2]) == row[2], row[0] == row[2]]
    assert metrics.brittleness_ties(scores, 2).tolist() == [row[2] in row[:2]]


def test_two_images_with_two_captions_each():
    right = np.array([[[5.0, 4, 1, 2], [0, 3, 7, 6]]])
    assert metrics.text_score(right, 2).all() and metrics.image_score(right, 2).all()
    assert metrics.group_score(right, 2).all() and metrics.group_match(right, 2).all()
    stolen = right.copy()
    stolen[0, 1, 1] = 4.5  # the second image scores a caption of the first higher than that image does
    assert metrics.text_score(stolen, 2).all() and not metrics.image_score(stolen, 2).any()
    assert not metrics.group_score(stolen, 2).any() and metrics.group_match(stolen, 2).all()
    matching = match_groups(right, 2)
    assert matching.captions.tolist() == [[[0, 1], [2, 3]]]
    assert matching.margin.tolist() == [22 - (5 + 2 + 3 + 7)]  # image 1 gives up caption 2 for 4


@pytest.mark.parametrize(("images", "captions", "true"), SHAPES)
def test_matchings_are_all_ways_to_give_captions_and_the_margin_is_that_of_the_two_best(images, captions, true):
    table = injections(images, captions, true)
    assert len(table) == len({tuple(row) for row in table.tolist()}) == count_matchings(images, captions, true)
    assert table[0].tolist() == list(range(images * true))
    assert all(len(set(row)) == len(row) for row in table.tolist())
    scores = np.random.default_rng(0).integers(-3, 4, size=(40, images, captions)).astype(float)
    found, right = match_groups(scores, true), metrics.group_match(scores, true)
    for at, group in enumerate(scores):
        totals = sorted((sum(group[p // true, c] for p, c in enumerate(row)) for row in table), reverse=True)
        assert found.margin[at] == totals[0] - totals[1] and found.tie[at] == (totals[0] == totals[1])
        assert (
            sum(group[image, one] for image, given in enumerate(found.captions[at]) for one in np.atleast_1d(given))
            == totals[0]
        )
        truth = sum(group[p // true, p] for p in range(images * true))
        assert right[at] == (truth == totals[0] > totals[1])
    assert right[metrics.group_score(scores, true)].all(), "where the group score holds, so does the group match"


ONE_TRUE = [(1, 2, 1), (1, 4, 1), (2, 2, 1), (2, 3, 1), (3, 3, 1), (2, 4, 1), (4, 4, 1), (2, 1, 1), (3, 2, 1)]
SEVERAL_TRUE = [(1, 3, 2), (1, 4, 2), (1, 4, 3), (2, 4, 2), (2, 6, 3), (3, 6, 2)]


@pytest.mark.parametrize(("images", "captions", "true"), ONE_TRUE + SEVERAL_TRUE)
def test_chance_levels_are_those_of_all_orders(images, captions, true):
    """Every order of the scores is equally likely: all of them are counted, or many drawn where they are too many."""
    cells = images * captions
    exact = math.factorial(cells) <= 50_000
    if exact:
        orders = np.array(list(permutations(range(cells))))
    else:
        orders = np.argsort(np.random.default_rng(1).random((100_000, cells)), axis=1)
    scores = orders.reshape(-1, images, captions).astype(float)
    asked = [metric_for(one, GroupShape(images, captions, true)) for one in METRICS if one.name != "text_only_score"]
    for metric in (one for one in asked if one.scope == "group" and one.defined(images, captions)):
        level = metric.chance(images, captions)
        if metric.name == "group_match" and images > 1:  # sums of ranks tie, which sums of continuous scores do not
            assert level == 1 / count_matchings(images, captions, true)
            continue
        off = 1e-12 if exact else 5 * math.sqrt(level * (1 - level) / len(scores))
        assert float(np.mean(metric.compute(scores))) == pytest.approx(level, abs=off), metric.name


def test_the_text_only_score_compares_captions_alone():
    likeness = np.ones((4, 3, 3))
    for at, (same, first, second) in enumerate([(0.9, 0.5, 0.8), (0.9, 0.95, 0.1), (0.9, 0.1, 0.9), (0.2, 0.3, 0.4)]):
        likeness[at, 0, 1] = likeness[at, 1, 0] = same
        likeness[at, 0, 2] = likeness[at, 2, 0] = first
        likeness[at, 1, 2] = likeness[at, 2, 1] = second
    assert metrics.text_only_score(likeness, true_captions=2).tolist() == [True, False, False, False]
    assert metrics.text_only_ties(likeness, true_captions=2).tolist() == [False, False, True, False]
    orders = np.array(list(permutations(range(3))))
    every = np.zeros((6, 3, 3))
    every[:, [0, 0, 1], [1, 2, 2]] = every[:, [1, 2, 2], [0, 0, 1]] = orders
    assert metrics.text_only_score(every, 2).mean() == pytest.approx(chance.text_only_score(1, 3, 2))
    assert chance.text_only_score(2, 6, 2) is None
    with pytest.raises(ValueError, match="do not fit"):
        metrics.text_only_score(likeness, true_captions=3)
    with pytest.raises(ValueError, match="do not fit"):
        metrics.text_score(likeness[:, :2], true_captions=2)
    with pytest.raises(ValueError, match="one image"):
        metrics.image_score(likeness[:, :1])


def test_the_global_assignment_gives_every_image_as_many_captions_as_are_true():
    rng = np.random.default_rng(3)
    for _ in range(60):
        images, true = int(rng.integers(1, 4)), int(rng.integers(2, 4))
        spare = min(int(rng.integers(0, 3)), 10 - images * true)  # of 11 captions there are 90,000 ways
        captions = images * true + spare + (images == 1)
        scores = rng.integers(0, 3, size=(images, captions)).astype(float)
        ways = injections(images, captions, true).reshape(-1, images, true)
        totals = scores[np.arange(images)[:, None], ways].sum(axis=(1, 2))
        best = ways[totals == totals.max()]
        found = match_global(scores, true)
        assert any((found.captions == way).all() for way in best)
        assert found.tie.tolist() == [len({tuple(way[i]) for way in best}) > 1 for i in range(images)]
        assert found.scores.sum() == totals.max()
        right = metrics.global_assignment_accuracy(scores, true_captions=true)
        assert right.tolist() == [all((way[i] == ways[0][i]).all() for way in best) for i in range(images)]
    assert chance.global_assignment_accuracy(5, 12, 2) == 1 / 66
    with pytest.raises(ValueError, match="more than 3"):
        match_global(np.zeros((2, 3)), 2)


def test_a_metric_knows_its_shape_or_is_undefined():
    two, one = GroupShape(1, 3, 2), GroupShape(1, 3)
    scores = np.array([[[3.0, 1.0, 2.0]]])
    assert metric_for(ALL["text_score"], one) is ALL["text_score"]
    known = metric_for(ALL["text_score"], two)
    assert not known.compute(scores)[0] and known.chance(1, 3) == pytest.approx(1 / 3) and known.defined(1, 3)
    assert not metric_for(ALL["brittleness"], one).defined(1, 3), "brittleness is of several true captions"
    assert metric_for(ALL["brittleness"], two).compute(scores)[0] == 1
    theirs = MetricSpec("theirs", lambda scores: scores[:, 0, 0] > 0)
    assert not metric_for(theirs, two).defined(1, 3), "what was written for one true caption says nothing of two"
    assert metric_for(theirs, one) is theirs
    matched = metric_for(ALL["global_assignment_accuracy"], two)
    pairs = np.array([[5.0, 4, 0, 3, 0, 0], [0, 0, 0, 0, 6, 6.0]])  # the second image should have captions 4 and 5
    assert matched.compute(pairs, None).tolist() == [True, False] and matched.chance(2, 6) == 1 / 15


# --- more images than captions: every number is that of the group with the two exchanged, or undefined ---------------

DEFINED = {"image_accuracy", "image_score", "group_score", "group_match"}


@pytest.mark.parametrize(
    ("pair", "right", "ties"), [((2.0, 1.0), True, False), ((1.0, 2.0), False, False), ((1.0, 1.0), False, True)]
)
def test_a_caption_and_two_images(pair, right, ties):
    scores = np.array(pair).reshape(1, 2, 1)
    for name in DEFINED:
        metric = ALL[name]
        assert metric.compute(scores).tolist() == [right], name
        assert metric.ties(scores).tolist() == [ties], name
    found = match_groups(scores)
    assert found.margin.tolist() == [abs(pair[0] - pair[1])] and found.tie.tolist() == [ties]
    if not ties:
        assert found.captions.tolist() == [[0, -1] if right else [-1, 0]]
        assert given_captions(found.captions[0]) == ([0, None] if right else [None, 0])


@pytest.mark.parametrize("shape", [(2, 1), (3, 1), (3, 2), (4, 2)])
def test_it_is_the_group_with_images_and_captions_exchanged(shape):
    scores = np.random.default_rng(0).integers(0, 5, (200, *shape)).astype(float)
    turned = scores.swapaxes(1, 2)
    assert metrics.image_score(scores).tolist() == metrics.text_score(turned).tolist()
    assert metrics.image_score_ties(scores).tolist() == metrics.text_score_ties(turned).tolist()
    assert metrics.group_score(scores).tolist() == metrics.group_score(turned).tolist()
    assert metrics.group_match(scores).tolist() == metrics.group_match(turned).tolist()
    one, other = match_groups(scores), match_groups(turned)
    assert one.margin.tolist() == other.margin.tolist() and one.tie.tolist() == other.tie.tolist()
    for given, images in zip(one.captions, other.captions, strict=True):
        assert [given.tolist().index(caption) for caption in range(shape[1])] == images.tolist()
        assert (given == -1).sum() == shape[0] - shape[1]


def test_what_asks_an_image_for_its_caption_is_undefined_and_absent():
    scores = Scores(np.array([[[2.0], [1.0]], [[1.0], [2.0]]], dtype=np.float32))
    for name in ("text_score", "text_score_ties_right", "individual_match"):
        with pytest.raises(ValueError, match="some images have no caption"):
            getattr(metrics, name)(scores.groups)
    for name in ("text_score", "individual_match", "global_assignment_accuracy"):
        with pytest.raises(ValueError, match="images <= captions"):
            getattr(chance, name)(2, 1)
    values = {one.metric: one.value for one in summarise([MethodScores("none", [scores])], METRICS, (0, 0, "wilson"))}
    assert {name for name, value in values.items() if value is not None} == {*DEFINED, "image_ece"}
    assert values["image_score"] == 0.5 and values["text_score"] is None
    with pytest.raises(ValueError, match="images <= captions"):
        match_global(np.zeros((3, 2)))


def test_a_metric_that_says_nothing_is_not_asked():
    asked = []
    mine = MetricSpec("mine", lambda scores: asked.append(scores.shape) or np.ones(len(scores)))
    zeros = MethodScores("none", [Scores(np.zeros((3, 2, 1), np.float32))])
    assert summarise([zeros], [mine], (0, 0, "wilson"))[0].value is None
    assert not asked


@pytest.mark.parametrize("shape", [(0, 2), (1, 1), (2, 0), (3, 2, 2)])
def test_shapes_that_are_none(shape):
    with pytest.raises(ValueError, match=r"at least 2 images or 2 captions|do not fit"):
        GroupShape(*shape)


def test_a_shape_and_its_truth():
    assert str(GroupShape(2, 1)) == "2x1" and GroupShape(2, 1).more_images and not GroupShape(1, 2).more_images
    with pytest.raises(ValueError, match="some images have no caption"):
        GroupShape(2, 1).truth(3)
