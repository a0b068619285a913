"""``ttmbench finetune``: weights that every command takes, their record, the track of their results, resuming."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.documents import schema
from support.small_models import USUAL, Towers

import ttmbench
from ttmbench.cli import main
from ttmbench.config import TTMConfig
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.adapters import RECORD
from ttmbench.evaluator.supervised import settings_of
from ttmbench.methods import runner
from ttmbench.methods import runner as checkpoint
from ttmbench.methods.finetuned import course
from ttmbench.methods.model_task import ModelTask
from ttmbench.plugins.registry import build_registry
from ttmbench.results.document import ResultsDocument
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Prepared, Rows

WORDS = "finetune --model tiny-clip --limit 4 --device cpu --tasks shapes_color".split()
SHORT = ["--finetune_args", "epochs=4,lr=2e-3,batch=6"]
QUICK = {"limit": 4, "device": "cpu", "bootstrap_iters": 50}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "weights"
    assert main([*WORDS, *SHORT, "-o", str(folder)]) == 0
    return folder


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_finetuning_teaches_what_it_trains_on_and_the_record_says_what_that_was(made):
    record = json.loads((made / RECORD).read_text())
    assert (record["kind"], record["status"], record["track"]) == ("finetuning", "done", "supervised")
    (task,) = record["tasks"]
    assert (task["task"], task["groups"], record["pairs"], record["loss"]) == ("shapes_color", 4, 8, "contrastive")
    rates = [one["learning_rate"] for one in record["epochs"]]
    assert rates == pytest.approx([2e-3, 1.5e-3, 1e-3, 5e-4]), "down to 0 along a line, over all epochs"
    assert record["epochs"][-1]["loss"] < record["epochs"][0]["loss"]
    assert record["trained_on"] == ["rendered-scenes"], "what the base was trained on counts on"
    run = ttmbench.simple_evaluate("hf", "shapes_color", model_args={"pretrained": str(made)}, **QUICK)
    assert run["model_info"]["fingerprint"]["weights_sha256"] == record["weights_sha256"]
    assert run["task_hashes"]["shapes_color"] == record["data_sha256"]
    assert not list(made.glob(".finetune")), "nothing to go on from is left"


def test_results_of_such_weights_have_a_track_of_their_own(made, tmp_path):
    words = ["--model", "hf", "--model_args", f"pretrained={made}", "--tasks", "shapes_color,shapes_place"]
    words += ["--limit", "8", "--device", "cpu", "--methods", "ttm,oracle", "--ttm_args", "iterations=1,epochs=1"]
    words += ["--save_adapted", str(tmp_path / "adapted"), "-o", str(tmp_path / "x.json")]
    assert main(words) == 0
    document = json.loads((tmp_path / "x.json").read_text())
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    for tracks in document["tracks"].values():
        assert {track for key, track in tracks.items() if not key.endswith(",oracle")} == {"supervised"}
        assert {track for key, track in tracks.items() if key.endswith(",oracle")} == {"oracle"}
    assert document["model_info"]["finetuned"]["tasks"][0]["task"] == "shapes_color"
    assert any("finetuned on groups of shapes_color" in note for note in document["notes"]["shapes_color"])
    assert not any("finetuned" in note for note in document["notes"].get("shapes_place", []))
    names = {(one.metric, one.method): one.column for one in ResultsDocument.model_validate(document).numbers}
    assert names["group_score", "none"] == "raw" and names["group_match", "none"] == "SimpleMatch"
    ttmbench.simple_evaluate("tiny-clip", "shapes_color", output_path=str(tmp_path / "y.json"), **QUICK)
    assert main(["leaderboard", str(tmp_path), "-o", str(tmp_path / "board")]) == 0
    board = json.loads((tmp_path / "board" / "leaderboard.json").read_text())
    jsonschema.Draft202012Validator(schema("leaderboard")).validate(board)
    by_track = {track: {row["model"] for row in board["rows"] if row["track"] == track} for track in board["tracks"]}
    assert by_track == {
        "zero_shot": {"tiny-clip"},
        "matching": {"tiny-clip"},
        "supervised": {"weights"},
        "oracle": {"weights"},
    }
    adapted = ttmbench.simple_evaluate(
        "hf", "shapes_place", model_args={"pretrained": str(tmp_path / "adapted/ttm/shapes_place/seed_0")}, **QUICK
    )
    assert set(adapted["tracks"]["shapes_place"].values()) == {"supervised"}, "adapting does not unlearn the labels"
    assert main(["export", str(tmp_path / "x.json"), "--to", "model-index"]) == 2
    assert main(["export", str(tmp_path / "x.json"), "--to", "latex"]) == 0


def stopped_after(monkeypatch, epochs: int):
    """A Ctrl-C once so many epochs are over."""
    real = ModelTask.fit
    count = [0]

    def fit(*args):
        if count[0] == epochs:
            raise KeyboardInterrupt
        count[0] += 1
        return real(*args)

    monkeypatch.setattr(ModelTask, "fit", fit)
    return count


@pytest.mark.parametrize("stop", [1, 3])
def test_the_same_command_goes_on_and_ends_with_the_same_weights(made, stop, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "weights"
    monkeypatch.setattr(checkpoint, "_MAX_SAVING", float("inf"))  # every epoch is written down
    monkeypatch.setattr(runner, "EVERY", 0.0)
    with monkeypatch.context() as patched:
        stopped_after(patched, stop)
        assert main([*WORDS, *SHORT, "-o", str(folder)]) == 130
        assert "run the same command again to resume" in capsys.readouterr().err
    assert json.loads((folder / RECORD).read_text())["status"] == "running"
    with monkeypatch.context() as patched:
        count = stopped_after(patched, 100)
        assert main([*WORDS, *SHORT, "-o", str(folder)]) == 0
        assert count[0] == 4 - stop, "no epoch is done twice"
    assert all(torch.equal(one, weights(made)[name]) for name, one in weights(folder).items())
    with monkeypatch.context() as patched:
        count = stopped_after(patched, 0)
        assert main([*WORDS, *SHORT, "-o", str(folder)]) == 0 and count[0] == 0
    assert "is already fine-tuned" in capsys.readouterr().out


def test_seeds_differ_and_deterministic_repeats(made, tmp_path):
    for name, more in (("a", ["--deterministic"]), ("b", ["--deterministic"]), ("c", ["--seed", "1"])):
        assert main([*WORDS, *SHORT, *more, "-o", str(tmp_path / name)]) == 0
    first, second, other = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(one, second[name]) for name, one in first.items())
    assert not all(torch.equal(one, other[name]) for name, one in weights(made).items())


def test_a_folder_of_something_else_is_left_alone(made, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("x")
    assert main([*WORDS, *SHORT, "-o", str(tmp_path)]) == 2
    assert "is not empty and has no earlier fine-tuning; choose a new folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt"]
    assert main([*WORDS, "--finetune_args", "epochs=1", "-o", str(made)]) == 2
    assert "holds another finetuning (shapes_color, status done)" in capsys.readouterr().err
    assert main([*WORDS, *SHORT]) == 2
    assert "needs --output_path DIR" in capsys.readouterr().err


def test_what_cannot_be_finetuned_says_so(tmp_path, capsys, tiny_vlm):
    def refused(*words: str) -> str:
        capsys.readouterr()
        assert main(["finetune", *words, "--limit", "4", "-o", str(tmp_path / "x")]) == 2
        assert not (tmp_path / "x").exists(), "nothing was made"
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    model = ("--model", "tiny-clip", "--tasks")
    assert "is matched globally" in refused(*model, "shapes_color_global")
    assert "are 2x2 and of 'shapes_spatial' 1x4" in refused(*model, "shapes_color,shapes_spatial")
    assert "unknown preset 'colours' (--preset); known: colorswap" in refused(
        *model, "shapes_color", "--preset", "colours"
    )
    assert "lrr" in refused(*model, "shapes_color", "--finetune_args", "lrr=1")
    blind = str(tiny_vlm("gpt2"))
    words = ("--model", "blind", "--model_args", f"pretrained={blind}", "--tasks", "shapes_color")
    assert "cannot be finetuned" in refused(*words)


def test_a_damaged_record_is_no_reason_to_rank_the_model_with_others(made, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    (folder / RECORD).write_text("{")
    with pytest.raises(DataError, match=f"{RECORD}.*records what the weights next to it were fine-tuned on"):
        ttmbench.simple_evaluate("hf", "shapes_color", model_args={"pretrained": str(folder)}, **QUICK)
    (folder / RECORD).write_text("{}")
    with pytest.raises(DataError, match=f"{RECORD} is damaged"):
        ttmbench.simple_evaluate("hf", "shapes_color", model_args={"pretrained": str(folder)}, **QUICK)


def test_finetuning_again_keeps_what_came_before(made, tmp_path):
    words = ["finetune", "--model", "hf", "--model_args", f"pretrained={made}", "--tasks", "shapes_place"]
    words += ["--limit", "8", "--device", "cpu", "--finetune_args", "epochs=1", "-o", str(tmp_path / "twice")]
    assert main(words) == 0
    record = json.loads((tmp_path / "twice" / RECORD).read_text())
    assert [one["task"] for one in record["tasks"]] == ["shapes_color", "shapes_place"]
    assert record["trained_on"] == ["rendered-scenes"]


def test_a_matching_head_is_taught_both_what_matches_and_what_does_not(tiny_vlm, tmp_path, capsys):
    folder = str(tiny_vlm("blip"))
    words = ["finetune", "--model", "blip-itm", "--model_args", f"pretrained={folder}", "--tasks", "shapes_color"]
    words += ["--limit", "8", "--device", "cpu", "--preset", "colorswap", "--finetune_args", "epochs=6,lr=1e-3"]
    assert main([*words, "-o", str(tmp_path / "blip")]) == 0
    out = capsys.readouterr().out
    assert "32 pairs, 6 epochs" in out and "note: arXiv:2402.04492, Appendix D" in out
    assert f"--model blip-itm --model_args pretrained={tmp_path / 'blip'}" in out
    record = json.loads((tmp_path / "blip" / RECORD).read_text())
    assert record["loss"] == "matching" and record["hyperparameters"]["batch"] == 32
    assert record["epochs"][-1]["loss"] < record["epochs"][0]["loss"]
    run = ttmbench.simple_evaluate(
        "blip-itm", "shapes_color", model_args={"pretrained": str(tmp_path / "blip")}, limit=8, device="cpu"
    )
    assert set(run["tracks"]["shapes_color"].values()) == {"supervised"}


def test_a_model_of_open_clip_is_finetuned_into_a_folder_of_its_own_kind(tmp_path, capsys):
    from support.tiny_models import open_clip

    (tmp_path / "base").mkdir()
    base = open_clip(tmp_path / "base")
    words = ["finetune", "--model", "open_clip", "--model_args", f"model=local-dir:{base}", "--tasks", "shapes_color"]
    words += ["--limit", "4", "--device", "cpu", "--finetune_args", "epochs=1", "-o", str(tmp_path / "tuned")]
    assert main(words) == 0, capsys.readouterr().err
    where = f"model=local-dir:{tmp_path / 'tuned'}"
    assert f"--model open_clip --model_args {where}" in capsys.readouterr().out
    run = ttmbench.simple_evaluate("open_clip", "shapes_color", model_args=where, limit=4, device="cpu")
    assert set(run["tracks"]["shapes_color"].values()) == {"supervised"}


def test_presets_are_the_papers():
    registry, names = build_registry(), ("epochs", "lr", "schedule", "weight_decay", "batch")
    dual, head = (settings_of(registry, "colorswap", loss, {}) for loss in ("contrastive", "matching"))
    assert [dual[name] for name in names] == [100, 2e-5, "linear", 0.1, 64]
    assert [head[name] for name in names] == [100, 1e-5, "linear", 0.05, 32]
    assert settings_of(registry, "colorswap", "matching", {"epochs": 3})["epochs"] == 3
    with pytest.raises(UsageError, match="--finetune_args schedule: must be linear or cosine or constant"):
        settings_of(registry, None, "matching", {"schedule": "step"})


def test_pairs_are_the_true_ones_and_for_a_head_all_of_the_group():
    rows = Rows(np.array([[0, 1], [2, 0]]), np.array([[0, 1], [1, 2]]))
    stage = PreparedTask(Towers(), Prepared(torch.zeros(3, 1), torch.zeros(3, 1), rows), 64, False, False)

    def labelled(adapter, **how):
        return ModelTask(replace(stage, adapter=adapter), None, TTMConfig(), 0, *USUAL, **how).labelled_pairs()

    pairs = labelled(Towers(), with_labels=True)
    assert pairs.images.ravel().tolist() == [0, 1, 2, 0] and pairs.captions.ravel().tolist() == [0, 1, 1, 2]
    assert pairs.matched is None
    pairs = labelled(SimpleNamespace(), with_labels=True)
    assert pairs.images.ravel().tolist() == [0, 0, 1, 1, 2, 2, 0, 0]
    assert pairs.captions.ravel().tolist() == [0, 1, 0, 1, 1, 2, 1, 2]
    assert pairs.matched.ravel().tolist() == [True, False, False, True] * 2
    with pytest.raises(UsageError, match="its needs must have 'labels'"):
        labelled(Towers())


def test_courses_of_the_learning_rate():
    def factors(schedule: str) -> list[float]:
        return [course(schedule, 2, epoch, step, 2) for epoch in (0, 1) for step in (0, 1)]

    assert factors("linear") == [1.0, 0.75, 0.5, 0.25] and factors("constant") == [1.0] * 4
    assert factors("cosine") == pytest.approx([1.0, (1 + np.cos(np.pi / 4)) / 2, 0.5, (1 - np.cos(np.pi / 4)) / 2])
