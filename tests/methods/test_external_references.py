"""References of another task: the formulas with them; encoded once, cached and recorded; refused where too few."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.method_tasks import BIAS, SCALE, feature_task, units

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.evaluator import one_task as methods
from ttmbench.methods.dis import dis
from ttmbench.methods.dn import dn
from ttmbench.methods.features import ReferenceSet
from ttmbench.methods.nnn import nnn

QUICK = {"limit": 8, "device": "cpu", "bootstrap_iters": 0}


def task_with_references(images=5, captions=7):
    task, generator = feature_task(4, 2, 3), torch.Generator().manual_seed(4)
    there = ReferenceSet(units(generator, images, 8), units(generator, captions, 8), {})
    task._references = {"elsewhere": there}
    return task, there


def test_the_formulas_with_references_of_another_task():
    task, there = task_with_references()
    images, captions = task.images.double(), task.captions.double()
    v, t = there.images.double(), there.captions.double()
    expected = SCALE * (images - 0.25 * v.mean(0)) @ (captions - 0.25 * t.mean(0)).mT + BIAS
    torch.testing.assert_close(dn(task, references="elsewhere").double(), expected, atol=1e-5, rtol=0)
    of_captions = 0.75 * (captions @ v.T).topk(2).values.mean(-1)[:, None, :]
    of_images = 0.75 * (images @ t.T).topk(2).values.mean(-1)[:, :, None]
    expected = task.scores.double() - SCALE * (of_captions + of_images)
    torch.testing.assert_close(nnn(task, references="elsewhere", k=2).double(), expected, atol=1e-5, rtol=0)
    sums = (20 * captions @ v.T).logsumexp(-1)[:, None, :] + (20 * images @ t.T).logsumexp(-1)[:, :, None]
    expected = task.scores.double() - SCALE / 20 * sums
    torch.testing.assert_close(dis(task, references="elsewhere").double(), expected, atol=1e-5, rtol=0)


def evaluate(references, tasks="shapes_color", **settings):
    args = {f"{name}.references": value for name, value in references.items()}
    settings = {**QUICK, **settings}
    return ttmbench.simple_evaluate("tiny-clip", tasks, methods=list(references), method_args=args, **settings)


def test_they_are_encoded_once_cached_and_recorded(monkeypatch, tmp_path):
    encoded, encode = [], methods.encode_images
    monkeypatch.setattr(methods, "encode_images", lambda *given: encoded.append(len(given[1].images)) or encode(*given))
    settings = {"references": {"dn": "shapes_place:6", "nnn": "shapes_place:6"}, "use_cache": str(tmp_path)}
    first = evaluate(tasks="shapes_color,shapes_spatial,shapes_place", **settings).document
    assert encoded == [12], "once for two methods on two tasks"
    again = evaluate(tasks="shapes_color", **settings).document
    assert encoded == [12] and again["results"]["shapes_color"] == first["results"]["shapes_color"]
    record = first["methods"]["shapes_color"]["dn"]
    assert record["settings"]["references"] == "shapes_place:6"
    assert {name: record["references"][name] for name in ("task", "images")} == {"task": "shapes_place", "images": 12}
    captions = record["references"]["captions"]
    assert len(record["references"]["data_sha256"]) == 64 and 2 <= captions <= 12
    cost, own = (
        one["cost"][0] for one in (record, evaluate({"dn": "others"}).document["methods"]["shapes_color"]["dn"])
    )
    assert [cost[side] - own[side] for side in ("image_rows", "caption_rows")] == [12, captions]
    assert "shapes_place" not in first.get("methods", {})
    notes = [note for note in first["notes"]["shapes_place"] if "references" in note]
    assert len(notes) == 2 and notes[0].startswith("method 'dn' was not run: its references are the task itself")


def test_the_order_of_references_says_nothing_of_pairs(monkeypatch):
    made, keep = [], methods.TaskCache.keep
    monkeypatch.setattr(
        methods.TaskCache, "keep", lambda self, sides, name: made.append(sides) or keep(self, sides, name)
    )
    sets, encoded = [], methods.reference_set
    monkeypatch.setattr(methods, "reference_set", lambda *given: sets.append(encoded(*given)) or sets[-1])
    evaluate({"dn": "shapes_place:6"})
    for side, there in zip(
        next(one for one in made if "images" in one).values(), (sets[0].images, sets[0].captions), strict=True
    ):
        assert not np.array_equal(there, side)
        np.testing.assert_array_equal(np.sort(there.numpy(), axis=0), np.sort(side, axis=0))


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ("shapes_plac", "unknown task 'shapes_plac'"),
        ("shapes_naming", "--method_args dn.references: task 'shapes_naming' has classes and no captions"),
        ("shapes_color", "cannot be run on task 'shapes_color': its references are the task itself"),
        ("shapes_retrieval:1", "method 'dn': references=shapes_retrieval:1 needs at least two reference images"),
    ],
)
def test_a_wrong_reference_is_refused_in_one_line(references, message):
    with pytest.raises(UsageError) as refused:
        evaluate({"dn": references})
    assert message in str(refused.value) and "\n" not in str(refused.value)
