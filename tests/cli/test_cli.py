"""The command line as a user meets it: every wrong input ends in one clear line and the documented exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ttmbench.cli import main

BASE = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "4", "--device", "cpu", "--bootstrap_iters", "20"]


def base_but(option: str) -> list[str]:
    """`BASE` without an option, which is given otherwise."""
    at = BASE.index(option)
    return [*BASE[:at], *BASE[at + 2 :]]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_run_prints_a_table_and_writes_a_file(tmp_path, capsys):
    code, out, err = run(capsys, *BASE, "--ttm", "--ttm-args", "iterations=1,epochs=1", "-o", str(tmp_path))
    assert code == 0 and err == ""
    rows = ("SimpleMatch: group match", "TTM: group match", "raw: group score")
    for word in (*rows, "chance", "ties", "16.67", "50.00"):
        assert word in out
    (written,) = (tmp_path / "tiny-clip").glob("results_*.json")
    assert f"results: {written}" in out.replace("\n", "")


def test_score_prints_and_writes(tmp_path, capsys, real_scores):
    target = tmp_path / "x.json"
    code, out, _ = run(capsys, "score", str(real_scores / "clip.jsonl"), "--task", "winoground", "-o", str(target))
    assert code == 0 and "63.75" in out and "30.75" in out
    assert json.loads(target.read_text(encoding="utf-8"))["results"]["winoground"]["group_match,none"] == 0.6375


def test_listings(capsys):
    for kind in ("tasks", "models", "tags", "metrics", "schedules", "plugins"):
        code, out, err = run(capsys, "ls", kind)
        assert code == 0 and out and not err
        code, out, _ = run(capsys, "ls", kind, "--json")
        assert code == 0 and isinstance(json.loads(out), list)
    assert "shapes_color" in run(capsys, "ls", "tasks")[1]


def test_show_lists_what_a_model_takes(capsys):
    code, out, _ = run(capsys, "show", "visualgpt-blip")
    arguments = json.loads(out)["arguments"]
    assert code == 0 and "default" not in arguments["pretrained"] and "device" not in arguments
    assert arguments["alpha"]["default"] == 0 and "log P(t)" in arguments["alpha"]["meaning"]


def test_show_a_task_and_a_model(capsys):
    code, out, _ = run(capsys, "show", "winoground")
    assert code == 0 and json.loads(out)["metrics"]["group_match"]["chance"] == 0.5
    code, out, _ = run(capsys, "show", "siglip-b16")
    assert code == 0 and json.loads(out)["model_args"]["pretrained"] == "google/siglip-base-patch16-224"


def test_validate(capsys, folder_task):
    folder = folder_task()
    code, out, _ = run(capsys, "validate", str(folder / "mine.yaml"), "shapes_place")
    assert code == 0 and "6 groups, all images decode" in out and "group_match 50.00" in out
    (folder / "images" / "0_0.png").write_bytes(b"")
    code, out, _ = run(capsys, "validate", str(folder / "mine.yaml"))
    assert code == 4 and "image 0_0.png of group g0" in out
    assert run(capsys, "validate", "--schema_only")[0] == 0


def test_schema(capsys):
    code, out, _ = run(capsys, "schema", "results")
    assert code == 0 and json.loads(out)["title"] == "ttmbench results"


def test_dry_run_says_what_would_run(capsys):
    code, out, _ = run(capsys, *BASE, "--ttm", "--dry_run")
    assert code == 0 and json.loads(out)["tasks"]["shapes_color"]["ttm"]["lr"] > 0


def test_config_file_and_precedence(tmp_path, capsys):
    config = tmp_path / "run.yaml"
    config.write_text("model: tiny-clip\ntasks: shapes_color\nlimit: 3\nbootstrap-iters: 10\n", encoding="utf-8")
    code, _, _ = run(capsys, "--config", str(config), "--limit", "5", "-o", str(tmp_path / "x.json"))
    document = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert code == 0 and document["config"]["limit"] == 5 and document["config"]["bootstrap_iters"] == 10


@pytest.fixture
def wrong_inputs(tmp_path, tiny_hf_clip):
    """case -> (arguments, exit code, what the line must say)."""
    import shutil

    import numpy as np

    def yaml_file(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    for name, keep in (("cut", -50), ("empty", 0)):
        shutil.copytree(tiny_hf_clip, tmp_path / name)
        weights = tmp_path / name / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:keep])
    seven = tmp_path / "seven.npz"
    np.savez(seven, np.random.default_rng(0).normal(size=(7, 2, 2)))
    more = tmp_path / "more.npz"
    np.savez(more, np.random.default_rng(0).normal(size=(401, 2, 2)))
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    nowhere = ["-o", str(file / "x.json")]
    hf = ["--model", "hf", "--tasks", "shapes_color", "--device", "cpu"]
    return {
        "unknown task": ([*base_but("--tasks"), "--tasks", "shapes_colour"], 2, "did you mean 'shapes_color'"),
        "unknown glob": ([*base_but("--tasks"), "--tasks", "nothing_*"], 2, "unknown task 'nothing_*'"),
        "unknown model": ([*base_but("--model"), "--model", "tiny-clap"], 2, "did you mean 'tiny-clip'"),
        "unknown model at all": ([*base_but("--model"), "--model", "zzz"], 2, "known: "),
        "unknown flag": ([*BASE, "--tmm"], 2, "did you mean --ttm?"),
        "unknown command": (["evaluate"], 2, "evaluate"),
        "flag without value": ([*BASE, "--limit"], 2, "--limit"),
        "flag with a wrong value": ([*BASE, "--limit", "none"], 2, "--limit"),
        "broken YAML": ([*base_but("--tasks"), "--tasks", yaml_file("broken.yaml", "task: [x")], 2, "not valid YAML"),
        "wrong key": (
            [*base_but("--tasks"), "--tasks", yaml_file("key.yaml", "task: key\nverison: 1")],
            2,
            "did you mean 'version'",
        ),
        "absent YAML": ([*base_but("--tasks"), "--tasks", str(tmp_path / "absent.yaml")], 2, "does not exist"),
        "truncated weights": ([*hf, "--model_args", f"pretrained={tmp_path / 'cut'}"], 4, "cannot be loaded"),
        "empty weights": ([*hf, "--model_args", f"pretrained={tmp_path / 'empty'}"], 4, "cannot be loaded"),
        "absent weights": ([*hf, "--model_args", "pretrained=nobody/nothing"], 4, "neither a folder"),
        "no weights named": (hf, 2, "--model_args pretrained="),
        "unknown model argument": ([*BASE, "--model_args", "size=3"], 2, "size"),
        "no key=value": ([*BASE, "--model_args", "size"], 2, "must be key=value, separated by commas, got 'size'"),
        "unwritable folder": ([*BASE, "-o", str(file / "below")], 2, "cannot be written to"),
        "output is a folder": ([*BASE, "-o", str(make_folder(tmp_path / "x.json"))], 2, "cannot be written to"),
        "7 of 400 groups": (["score", str(seven), "--task", "winoground"], 4, "has 7 groups, but task 'winoground'"),
        "401 of 400 groups": (["score", str(more), "--task", "winoground"], 4, "has 401 groups"),
        "scores to nowhere": (["score", str(seven), "--task", "winoground", *nowhere], 2, "cannot be written to"),
        "absent scores": (["score", str(tmp_path / "no.npz"), "--task", "winoground"], 4, "cannot be read"),
        "scores of another shape": (["score", str(seven), "--task", "shapes_spatial"], 4, "1 images, 4 captions"),
        "unknown task of scores": (["score", str(seven), "--task", "winogrund"], 2, "did you mean 'winoground'"),
        "unknown TTM setting": ([*BASE, "--ttm", "--ttm_args", "epoch=3"], 2, "did you mean 'epochs'"),
        "TTM setting out of range": ([*BASE, "--ttm", "--ttm_args", "epochs=0"], 2, "'epochs'"),
        "unknown schedule": ([*BASE, "--ttm", "--ttm_args", "schedule=cosin"], 2, "did you mean 'cosine'"),
        "TTM settings without TTM": (
            [*BASE, "--ttm_args", "lr=1e-3"],
            2,
            "ttm_args is for test-time training",
        ),
        "seeds without TTM": ([*BASE, "--seeds", "0,1"], 2, "so it needs ttm, simple_match or oracle"),
        "preset without TTM": ([*BASE, "--ttm_preset", "paper"], 2, "ttm_preset is for test-time training"),
        "samples to nowhere": ([*BASE, "--log_samples"], 2, "log_samples writes a file, so it needs output_path"),
        "assertion on no task": (
            [*BASE, "--assert", "shape_color.group_match,none>0"],
            2,
            "did you mean 'shapes_color'",
        ),
        "unknown preset": ([*BASE, "--ttm_preset", "papr"], 2, "ttm_preset"),
        "doubled seeds": ([*BASE, "--seeds", "1,1"], 2, "different whole numbers"),
        "unknown device": ([*BASE, "--device", "cuda:77"], 2, "--device cpu"),
        "absent config": (["--config", str(tmp_path / "no.yaml")], 2, "cannot be read"),
        "wrong config": (
            ["--config", yaml_file("c.yaml", "modle: x\ntasks: [a]\nmodel: x")],
            2,
            "did you mean 'model'",
        ),
        "no model": (["--tasks", "shapes_color"], 2, "--model is needed"),
        "no tasks": (["--model", "tiny-clip"], 2, "--tasks is needed"),
        "assertion": ([*BASE, "--assert", "shapes_color.group_match,none>=1.1"], 3, "it is "),
        "unreadable assertion": ([*BASE, "--assert", "good"], 2, "cannot be read"),
        "no such thing to show": (["show", "winogruond"], 2, "did you mean 'winoground'"),
        "no such schema": (["schema", "result"], 2, "known: results, task"),
        "data out of reach": ([*base_but("--tasks"), "--tasks", "winoground"], 4, "facebook/winoground"),
        "task args": ([*BASE, "--task_args", "sede=3"], 2, "did you mean 'seed'"),
        "scene": ([*BASE, "--task_args", "scene=colour"], 2, "known: color"),
    }


def test_assertions_hold_for_stored_scores_too(tmp_path, capsys):
    import numpy as np

    file = tmp_path / "eye.npz"
    np.savez(file, scores=np.tile(np.eye(2, dtype=np.float32), (8, 1, 1)))
    words = ["score", str(file), "--task", "shapes_color", "--limit", "8", "-o", str(tmp_path / "x.json")]
    assert main([*words, "--assert", "shapes_color.group_score,none==1"]) == 0
    (tmp_path / "x.json").unlink()
    assert main([*words, "--assert", "shapes_color.group_score,none<1"]) == 3
    assert "group_score,none<1: it is 1" in capsys.readouterr().err
    assert (tmp_path / "x.json").exists(), "results are written first"
    assert main([*words, "--assert", "good"]) == 2 and "cannot be read" in capsys.readouterr().err
    (tmp_path / "x.json").unlink()
    for wrong, says in (
        ("shape_color.group_score,none<1", "no task 'shape_color' here; did you mean 'shapes_color'"),
        ("shapes_color.group,none<1", "task 'shapes_color' has no metric 'group'"),
        ("shapes_color.group_score,ttm<1", "there will be no filter 'ttm'; known: none"),
    ):
        assert main([*words, "--assert", wrong]) == 2 and says in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_every_wrong_input_is_one_line_and_its_exit_code(wrong_inputs, capsys, tmp_path):
    for case, (arguments, code, says) in wrong_inputs.items():
        given = list(arguments)
        if given[0] == "score" and "-o" not in given:
            given += ["-o", str(tmp_path / "never.json")]
        found, _, err = run(capsys, *given)
        lines = [line for line in err.splitlines() if line.strip()]
        assert found == code, (case, found, err)
        assert len(lines) == 1 and lines[0].startswith("ttmbench"), (case, err)
        assert says in lines[0], (case, lines[0])
        assert "Traceback" not in err
    assert not (tmp_path / "never.json").exists(), "no result file after an error"


def test_debug_shows_the_traceback_and_keeps_the_exit_code(capsys):
    code, _, err = run(capsys, *base_but("--tasks"), "--tasks", "nothing", "--verbosity", "debug")
    assert code == 2 and "Traceback" in err


def test_ctrl_c_exits_130(monkeypatch, capsys):
    from ttmbench.evaluator import run as evaluator

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluator, "run_task", interrupted)
    assert run(capsys, *BASE)[0] == 130


def test_the_installed_command_answers():
    done = subprocess.run([sys.executable, "-m", "ttmbench", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ttmbench 0.")


@pytest.mark.parametrize("option", ["--batch_size/-b", "--limit/-L"])
def test_a_count_that_is_none_names_no_function(capsys, option):
    assert main(["run", "--model", "tiny-clip", "--tasks", "shapes_color", option.partition("/")[0], "many"]) == 2
    assert f"argument {option}: must be a whole number, got many" in capsys.readouterr().err
