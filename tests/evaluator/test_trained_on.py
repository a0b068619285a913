"""Models that were trained on the images of a task: stated by card or adapter, said in results, marked in tables."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import ttmbench
from ttmbench.cli import main
from ttmbench.data.task_file import all_tasks
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import trained_on
from ttmbench.plugins.registry import build_registry

QUICK = {"limit": 6, "device": "cpu", "bootstrap_iters": 0}


class Scorer(ttmbench.PairScorer):
    trained_on = ("coco", "laion")

    def fingerprint(self):
        return {"model": type(self).__name__}

    def score_pairs(self, images, captions):
        return np.array([len(caption) for caption in captions], dtype=np.float32)


@pytest.fixture
def coco_task(folder_task):
    return str(folder_task("mine", images_from="coco") / "mine.yaml")


class Untrained(Scorer):
    trained_on = ()


class Silent(Scorer):
    trained_on = None


def test_where_model_and_task_meet_results_and_tables_say_so(coco_task, tmp_path, capsys):
    """Trained on nothing is not the same as unknown."""
    runs, expected = tmp_path / "runs", {"Scorer": ["coco", "laion"], "Untrained": [], "Silent": None}
    given = {"tiny-clip": "tiny-clip", "Scorer": Scorer(), "Untrained": Untrained(), "Silent": Silent()}
    for name, stated in {"tiny-clip": ["rendered-scenes"], **expected}.items():
        made = ttmbench.simple_evaluate(given[name], coco_task, output_path=str(runs), **QUICK)
        assert made["model_info"]["trained_on"] == stated
        if name == "Scorer":
            assert made["seen_in_training"] == {"mine": ["coco"]} and set(made.to_frame()["seen"]) == {"coco"}
            assert made["notes"]["mine"] == ["the model was trained on images of coco, which this task uses"]
        else:
            assert "seen_in_training" not in made.document and made.to_frame()["seen"].isna().all()
    assert set(made.to_frame()["trained_on"]) == {"unknown"}
    assert main(["leaderboard", str(runs), "-o", str(tmp_path / "board")]) == 0
    text = capsys.readouterr().out
    assert re.search("^Scorer.*†", text, re.M) and not re.search("^tiny.*†", text, re.M)
    told = " ".join(text.split())
    assert "† trained on images of the collection that the task's images are of; unknown for Silent" in told
    rows = json.loads((tmp_path / "board" / "leaderboard.json").read_text())["rows"]
    by_model = {row["model"].partition("-")[0]: (row["seen"], row["trained_on"]) for row in rows}
    assert by_model["Scorer"] == ("coco", "coco, laion") and by_model["Untrained"] == (None, "none")
    assert by_model["Silent"] == (None, "unknown") and by_model["tiny"][0] is None
    page = tmp_path / "report.html"
    assert main(["report", str(runs), "-o", str(page)]) == 0
    html = page.read_text()
    assert "†" in html and "trained on images of the collection" in html
    capsys.readouterr()
    for name, stated in (("clip-b32", None), ("tiny-clip", ["rendered-scenes"])):
        assert main(["show", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["card"]["trained_on"] == stated


def test_a_card_is_of_its_own_weights_alone():
    registry = build_registry()
    assert "coco" in trained_on(registry, "blip-itm", {}, Silent())
    assert trained_on(registry, "blip-itm", {"pretrained": "my/blip"}, Silent()) is None
    assert trained_on(registry, "hf", {"pretrained": "x"}, Silent()) is None
    assert trained_on(registry, "clip-b32", {}, Silent()) is None
    wrong = Scorer()
    wrong.trained_on = "coco"
    with pytest.raises(UsageError, match="trained_on of Scorer must be a list of names, got 'coco'"):
        ttmbench.simple_evaluate(wrong, "shapes_color", **QUICK)


def test_collections_of_tasks_are_names_that_models_use():
    registry = build_registry()
    tasks = {name: file.spec.images_from for name, file in all_tasks(registry).items()}
    used = {name for spec in registry.adapters.values() if spec.card for name in spec.card.trained_on or ()}
    assert {name for names in tasks.values() for name in names} <= used | {"flickr30k"}, "which no model here states"
    assert {name for name, found in tasks.items() if found == ["coco"]} >= {
        *(f"sugarcrepe_{kind}" for kind in ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel")),
        *("sugarcrepe_swap_att", "sugarcrepe_swap_obj", "whatsup_coco_one", "whatsup_coco_two", "coco_retrieval"),
    }
    assert tasks["mmvp_vlm"] == tasks["mmvp_vlm_global"] == ["imagenet", "laion"] and tasks["winoground"] == []
