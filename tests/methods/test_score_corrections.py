"""Score corrections (dn, nnn, dis, sinkhorn, dual_softmax) against plain loops, and what holds of all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.method_tasks import BIAS, SCALE, feature_task, score_task

from ttmbench.errors import UsageError
from ttmbench.matching import match_groups
from ttmbench.methods import references as references_module
from ttmbench.methods.dis import dis
from ttmbench.methods.dn import dn
from ttmbench.methods.dual_softmax import dual_softmax
from ttmbench.methods.nnn import nnn
from ttmbench.methods.sinkhorn import sinkhorn
from ttmbench.metrics import group_match, group_score

SHARED = torch.tensor([[0, 1], [1, 2], [3, 3], [4, 5]])  # an item in two groups, and one twice in a group


def published_of_dn(task, strength, references):
    images, captions = task.all_images.double().numpy(), task.all_captions.double().numpy()
    found = np.empty(task.scores.shape)
    for g, own in enumerate(zip(task.image_rows.tolist(), task.caption_rows.tolist(), strict=True)):
        means = []
        for features, rows in zip((images, captions), own, strict=True):
            left_out = rows if references == "others" else []
            means.append(np.mean([one for row, one in enumerate(features) if row not in left_out], axis=0))
        for i, image in enumerate(own[0]):
            for j, caption in enumerate(own[1]):
                v, t = images[image] - strength * means[0], captions[caption] - strength * means[1]
                found[g, i, j] = SCALE * float(v @ t) + BIAS
    return found


@pytest.mark.parametrize("references", ["task", "others"])
@pytest.mark.parametrize("strength", [0, 0.25, 0.5])
@pytest.mark.parametrize("shape", [(6, 2, 2), (4, 1, 3), (4, 3, 2), (4, 2, 1)])
def test_published_steps_of_dn(shape, strength, references):
    task = feature_task(*shape)
    found = dn(task, strength=strength, references=references)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, published_of_dn(task, strength, references), atol=1e-5)


def test_too_few_references_are_refused_in_one_line():
    with pytest.raises(UsageError, match=r"^references=others needs at least two reference images, .* only 0: .*task$"):
        dn(feature_task(groups=1))
    with pytest.raises(UsageError, match=r"^references=task .* only 1: give a larger task$"):
        dn(feature_task(groups=1, images=1), references="task")


def test_models_with_several_vectors_for_an_item_are_refused():
    task = feature_task()
    task.all_images = task.all_images[:, None].expand(-1, 3, -1)
    with pytest.raises(UsageError, match="one vector for each item, and this model has several for its images"):
        dn(task)


def published_of_nnn(task, weight, k, direction, references):
    images, captions = task.all_images.double().numpy(), task.all_captions.double().numpy()

    def bias(item, queries, own):
        left_out = own if references == "others" else []
        near = sorted((float(item @ one) for row, one in enumerate(queries) if row not in left_out), reverse=True)
        return weight * np.mean(near[: min(k, len(near))])

    found = task.scores.double().numpy()
    for g, (seen, said) in enumerate(zip(task.image_rows.tolist(), task.caption_rows.tolist(), strict=True)):
        for i, image in enumerate(seen):
            for j, caption in enumerate(said):
                if direction != "t2i":
                    found[g, i, j] -= SCALE * bias(captions[caption], images, seen)
                if direction != "i2t":
                    found[g, i, j] -= SCALE * bias(images[image], captions, said)
    return found


@pytest.mark.parametrize("references", ["task", "others"])
@pytest.mark.parametrize("direction", ["i2t", "t2i", "both"])
@pytest.mark.parametrize("k", [1, 3, 128])
@pytest.mark.parametrize("shape", [(6, 2, 2), (4, 2, 3), (4, 3, 2)])
def test_published_steps_of_nnn(shape, k, direction, references):
    task = feature_task(*shape)
    found = nnn(task, k=k, direction=direction, references=references)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, published_of_nnn(task, 0.75, k, direction, references), atol=1e-5)


def test_shared_items_are_left_out_once():
    task = feature_task(image_rows=SHARED, caption_rows=SHARED.flip(1))
    np.testing.assert_allclose(dn(task), published_of_dn(task, 0.25, "others"), atol=1e-5)
    np.testing.assert_allclose(nnn(task, k=5), published_of_nnn(task, 0.75, 5, "both", "others"), atol=1e-5)


@pytest.mark.parametrize("references", ["task", "others"])
def test_pieces_change_nothing(monkeypatch, references):
    whole = nnn(feature_task(), references=references)
    monkeypatch.setattr(references_module, "_AT_ONCE", 30)
    torch.testing.assert_close(nnn(feature_task(), references=references), whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("images", "captions", "left"), [(1, 3, "i2t"), (3, 1, "t2i")])
def test_a_side_with_one_item_is_dropped_and_this_is_noted(images, captions, left):
    task = feature_task(5, images, captions)
    assert torch.equal(nnn(task), nnn(feature_task(5, images, captions), direction=left))
    other = "t2i" if left == "i2t" else "i2t"
    assert task.notes == [f"direction {other} is dropped: there is one item to choose from"]
    with pytest.raises(UsageError, match=f"^direction={other} needs groups of at least two .* to choose from, not"):
        nnn(task, direction=other)


def test_captions_of_every_group_are_measured_by_the_images_of_others():
    """As in classification, where no group has captions of its own."""
    task = feature_task(5, 1, 4, caption_rows=torch.arange(4).expand(5, 4))
    np.testing.assert_allclose(nnn(task, k=2), published_of_nnn(task, 0.75, 2, "i2t", "others"), atol=1e-5)


def published_of_dis(task, beta, references):
    """ln of exp(beta c_ij) / sum over the bank of exp(beta c_rj), all rows, in the unit of logits."""
    images, captions = task.all_images.double().numpy(), task.all_captions.double().numpy()
    found = np.empty(task.scores.shape)
    for g, (seen, said) in enumerate(zip(task.image_rows.tolist(), task.caption_rows.tolist(), strict=True)):
        bank = [one for row, one in enumerate(images) if references == "task" or row not in seen]
        for i, image in enumerate(seen):
            for j, caption in enumerate(said):
                total = sum(math.exp(beta * float(one @ captions[caption])) for one in bank)
                share = math.exp(beta * float(images[image] @ captions[caption])) / total
                found[g, i, j] = SCALE / beta * math.log(share) + BIAS
    return found


@pytest.mark.parametrize("references", ["task", "others"])
@pytest.mark.parametrize("beta", [20, 3])
@pytest.mark.parametrize("shape", [(6, 2, 2), (5, 1, 3)])
def test_published_steps_on_all_rows(shape, beta, references):
    task = feature_task(*shape)
    found = dis(task, beta=beta, direction="i2t", references=references)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, published_of_dis(task, beta, references), atol=1e-5)


def test_the_other_direction_is_that_of_the_task_with_images_and_captions_exchanged():
    task, turned = feature_task(), feature_task()
    turned.all_images, turned.all_captions = task.all_captions, task.all_images
    turned.scores = task.scores.mT
    torch.testing.assert_close(dis(task, direction="t2i"), dis(turned, direction="i2t").mT)
    one_side = dis(task, direction="i2t") + dis(task, direction="t2i") - task.scores
    torch.testing.assert_close(dis(task), one_side, atol=1e-5, rtol=0)


def published_of_sinkhorn(group, eps, tolerance=1e-6):
    """Rows and columns of exp(s / eps) divided by their sums in turn; a row of ones takes what is left over."""
    m, n = group.shape
    plan = [[math.exp(float(one) / eps) for one in row] for row in group] + ([[1.0] * n] if n > m else [])
    targets = [1.0] * m + [n - m]
    for _ in range(10_000):
        plan = [[target * one / sum(row) for one in row] for row, target in zip(plan, targets, strict=False)]
        sums = [sum(row[j] for row in plan) for j in range(n)]
        plan = [[one / sums[j] for j, one in enumerate(row)] for row in plan]
        if all(abs(sum(row) - target) <= tolerance for row, target in zip(plan, targets, strict=False)):
            break
    return eps * np.log(plan[:m])


@pytest.mark.parametrize("eps", [1, 0.5])
@pytest.mark.parametrize("shape", [(8, 2, 2), (8, 3, 3), (8, 2, 4), (8, 1, 3)])
def test_published_steps_of_sinkhorn(shape, eps):
    task = score_task(*shape)
    found = sinkhorn(task, eps=eps)
    assert found.dtype == torch.float32 and task.notes == []
    np.testing.assert_allclose(found, [published_of_sinkhorn(group, eps) for group in task.scores.numpy()], atol=1e-5)


@pytest.mark.parametrize("eps", [1, 0.25])
def test_at_2x2_the_group_score_is_the_group_match(eps):
    task = score_task(400, spread=1)
    assert (group_score(sinkhorn(task, eps=eps).numpy()) == group_match(task.scores.numpy())).all()


def test_groups_that_do_not_converge_are_noted():
    task = score_task(6)
    task.scores[2] = torch.tensor([[10.0, 0.0], [30.0, 5.0]])
    scores = sinkhorn(task, rounds=200)
    assert len(task.notes) == 1
    assert task.notes[0].startswith("sinkhorn did not converge in 1 of 6 groups: after 200 rounds rows sum to 1 within")
    assert group_score(scores.flip(2).numpy())[2], "the order of its scores is right all the same"


def published_of_dual_softmax(group, temperature):
    """``-dual_softmax_loss`` of starmemda/CAMoE's DSL.py for every pair, not the diagonal alone."""
    weighted = group * (group / temperature).softmax(0) * len(group)
    return weighted.log_softmax(-1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1000.0])
@pytest.mark.parametrize("shape", [(20, 2, 2), (10, 3, 3), (10, 2, 4), (10, 3, 2)])
def test_published_steps_of_dual_softmax(shape, temperature):
    task = score_task(*shape)
    for direction in ("i2t", "t2i"):
        found = dual_softmax(task, direction=direction, temperature=temperature)
        assert found.dtype == torch.float32 and task.notes == []
        for group, scores in zip(task.scores.double(), found, strict=True):
            mine = (group, scores) if direction == "i2t" else (group.T, scores.T)
            torch.testing.assert_close(
                mine[1], published_of_dual_softmax(mine[0], temperature).float(), atol=1e-5, rtol=1e-5
            )
    assert torch.equal(dual_softmax(task), dual_softmax(task, direction="i2t", temperature=1000.0))


@pytest.mark.parametrize(("shape", "direction"), [((9, 1, 4), "t2i"), ((9, 4, 1), "i2t")])
def test_with_one_item_to_choose_from_the_other_direction_stays(shape, direction):
    task = score_task(*shape)
    axis = 2 if shape[1] == 1 else 1
    torch.testing.assert_close(dual_softmax(task, direction=direction), task.scores.log_softmax(axis))
    assert task.notes == [f"direction {direction} is dropped: there is one item to choose from"]


def test_shapes_that_they_are_not_defined_for_are_refused():
    with pytest.raises(UsageError, match="sinkhorn needs at least as many captions as images, not 3x2"):
        sinkhorn(score_task(4, 3, 2))
    with pytest.raises(UsageError, match="dual_softmax needs groups of at least two images or two captions, not 1x1"):
        dual_softmax(score_task(3, 1, 1))


SUMS = [dn, nnn, dis, sinkhorn]


@pytest.mark.parametrize("side", [2, 3])
@pytest.mark.parametrize("method", SUMS)
def test_best_matchings_and_margins_of_square_groups_stay(method, side):
    task = feature_task(20, side, side)
    scores = method(task)
    assert not torch.allclose(scores, task.scores), "text and image scores do move"
    before, after = match_groups(task.scores.numpy()), match_groups(scores.numpy())
    assert (before.captions == after.captions).all()
    np.testing.assert_allclose(after.margin, before.margin, atol=1e-4)
    assert (group_match(scores.numpy()) == group_match(task.scores.numpy())).all()
