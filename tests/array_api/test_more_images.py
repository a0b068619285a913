"""More images than captions: every number is that of the group with the two exchanged, or undefined."""

from __future__ import annotations

import numpy as np
import pytest

from ttmbench import chance, metrics
from ttmbench._arrays.scores import given_captions
from ttmbench.matching import match_global, match_groups, oracle_margin
from ttmbench.metrics import METRICS
from ttmbench.results.summary import summarise
from ttmbench.types import GroupShape, MetricSpec, Scores

DEFINED = {"image_score", "group_score", "group_match"}
SHAPES = [(2, 1), (3, 1), (3, 2), (4, 2)]


@pytest.mark.parametrize(
    ("pair", "right", "ties"), [((2.0, 1.0), True, False), ((1.0, 2.0), False, False), ((1.0, 1.0), False, True)]
)
def test_a_caption_and_two_images(pair, right, ties):
    scores = np.array(pair).reshape(1, 2, 1)
    for name in DEFINED:
        metric = next(one for one in METRICS if one.name == name)
        assert metric.compute(scores).tolist() == [right], name
        assert metric.ties(scores).tolist() == [ties], name
    found = match_groups(scores)
    assert found.margin.tolist() == [abs(pair[0] - pair[1])] and found.tie.tolist() == [ties]
    if not ties:
        assert found.captions.tolist() == [[0, -1] if right else [-1, 0]]
        assert given_captions(found.captions[0]) == ([0, None] if right else [None, 0])
    assert oracle_margin(scores).tolist() == [pair[0] - pair[1]]


@pytest.mark.parametrize("shape", SHAPES)
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
    summary = summarise({"none": [scores]}, METRICS, 0, 0)
    values = {key.split(",")[0]: value for key, value in summary.results.items() if "_stderr" not in key}
    assert {name for name, value in values.items() if value is not None} == DEFINED
    assert values["image_score"] == 0.5 and values["text_score"] is None
    with pytest.raises(ValueError, match="images <= captions"):
        match_global(np.zeros((3, 2)))


def test_a_metric_that_says_nothing_is_not_asked():
    asked = []
    mine = MetricSpec("mine", lambda scores: asked.append(scores.shape) or np.ones(len(scores)))
    assert summarise({"none": [Scores(np.zeros((3, 2, 1), np.float32))]}, [mine], 0, 0).results["mine,none"] is None
    assert not asked


@pytest.mark.parametrize("shape", [(0, 2), (1, 1), (2, 0), (3, 2, 2)])
def test_shapes_that_are_none(shape):
    with pytest.raises(ValueError, match=r"needs images and captions|do not fit"):
        GroupShape(*shape)


def test_a_shape_and_its_truth():
    assert str(GroupShape(2, 1)) == "2x1" and GroupShape(2, 1).more_images and not GroupShape(1, 2).more_images
    with pytest.raises(ValueError, match="some images have no caption"):
        GroupShape(2, 1).truth(3)
