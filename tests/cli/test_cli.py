"""The command line as a user meets it: every wrong input ends in one clear line and the documented exit code."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from ttmbench.cli import main
from ttmbench.evaluator import evaluate as evaluator

BASE = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "4", "--device", "cpu", "--bootstrap_iters", "20"]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_listings(capsys):
    for kind in ("tasks", "models", "methods", "tags", "metrics", "schedules", "plugins"):
        code, out, err = run(capsys, "ls", kind)
        assert code == 0 and out and not err
        code, out, _ = run(capsys, "ls", kind, "--json")
        assert code == 0 and isinstance(json.loads(out), list)
    assert "shapes_color" in run(capsys, "ls", "tasks")[1]


def test_a_dry_run_checks_everything_in_ten_lines(folder_task, tmp_path, capsys):
    tasks, out = f"builtin,{folder_task() / 'mine.yaml'}", tmp_path / "out"
    words = ["--model", "tiny-clip", "--tasks", tasks, "--limit", "4", "--ttm", "--seeds", "3", "-o", str(out)]
    code, said, err = run(capsys, *words, "--dry_run")
    assert code == 0 and said.count("\n") <= 10 and "3 runs are --seeds 0,1,2" in err and not out.exists()
    for line in ("tiny_clip, 98", "shapes_color: 4 groups, data are here", "and 1 more", "56 captions", "seeds 3"):
        assert line in said, said
    assert f"results  {out}/tiny-clip/results_DATE.json" in said
    code, said, _ = run(capsys, *words, "--dry_run", "--json")
    about = json.loads(said)["tasks"]["mine"]
    assert code == 0 and about["groups"] == 4 and about["methods"]["ttm"]["lr"] > 0
    assert run(capsys, *words, "--json")[0] == 2


@pytest.mark.parametrize("dry", [True, False])
def test_a_dry_run_fails_where_the_run_would(dry, folder_task, tmp_path, tiny_hf_clip, capsys):
    """And data that are missing are reported before weights are read."""
    shutil.copytree(tiny_hf_clip, tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"")
    source = {"kind": "folder", "path": "none.jsonl"}
    absent, file = folder_task("absent", source=source) / "absent.yaml", tmp_path / "file"
    file.touch()
    for words, code, says in (
        (["hf", "--model_args", "pretrained=my-checkpoint", "--tasks", "shapes_color"], 4, "my-checkpoint"),
        (["hf", "--model_args", f"pretrained={tmp_path}/gone", "--tasks", "shapes_color"], 4, "gone"),
        (["hf", "--model_args", f"pretrained={tmp_path}/cut", "--tasks", "shapes_color"], 4, "cannot be loaded"),
        (["hf", "--model_args", f"pretrained={tmp_path}/cut", "--tasks", f"shapes_color,{absent}"], 4, "none.jsonl"),
        (["siglip-b16", "--tasks", "winoground"], 4, "facebook/winoground"),
        (["siglip-b16", "--tasks", "sugarcrepe_swap_att"], 4, "sugarcrepe/swap_att.json"),
        (["tiny-clip", "--tasks", "shapes_color", "--device", "cuda:77"], 2, "cuda:77"),
        (["tiny-clip", "--tasks", "shapes_color", "-o", str(file / "below")], 2, "cannot be written to"),
        (["tiny-clip", "--tasks", "shapes_color", "--use_cache", "off", "--methods", "tnet"], 2, "tent"),
    ):
        got, said, err = run(capsys, "--model", *words, *(["--dry_run"] if dry else []))
        assert got == code and says in err and err.count("\n") == 1 and not said, (words, err)


def test_embeddings_need_no_data(tmp_path, capsys):
    file = tmp_path / "e.npz"
    np.savez(file, img=np.random.rand(800, 4).astype(np.float32), cap=np.random.rand(800, 4).astype(np.float32))
    words = ["--model", "embeddings", "--model_args", f"path={file}", "--tasks", "winoground"]
    assert run(capsys, *words)[0] == 0
    code, said, _ = run(capsys, *words, "--dry_run")
    assert code == 0 and "winoground: not read by this model" in said


@pytest.fixture
def wrong_inputs(tmp_path, tiny_hf_clip) -> list[tuple[str, int, str]]:
    """(command line, exit code, what its one line must say)."""
    shutil.copytree(tiny_hf_clip, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    np.savez(tmp_path / "7.npz", np.random.default_rng(0).normal(size=(7, 2, 2)))
    for name, text in {"broken.yaml": "task: [x", "file": "", "c.yaml": "modle: x\ntasks: [a]\nmodel: x"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    base, hf, here = " ".join(BASE), "--model hf --tasks shapes_color --device cpu", tmp_path
    no_task, no_model = "--model tiny-clip --device cpu --tasks", "--tasks shapes_color --device cpu --model"
    return [
        (f"{no_task} shapes_colour", 2, "did you mean 'shapes_color'"),
        (f"{no_task} nothing_*", 2, "unknown task 'nothing_*'"),
        (f"{no_task} {here}/broken.yaml", 2, "not valid YAML"),
        (f"{no_task} {here}/absent.yaml", 2, "does not exist"),
        (f"{no_task} winoground", 4, "facebook/winoground"),
        (f"{no_model} tiny-clap", 2, "did you mean 'tiny-clip'"),
        (f"{no_model} zzz", 2, "unknown model 'zzz'; `ttmbench ls models` lists them"),
        (f"{base} --tmm", 2, "did you mean --ttm?"),
        (f"{base} --ttm --lr 1e-3", 2, "--ttm_args lr=VALUE"),
        (f"{base} --pretrained x", 2, "--model_args pretrained=VALUE"),
        (f"{base} --ttm --seed 0 1 2", 2, "--seeds 0,1,2"),
        (f"{base} --methods TTM", 2, "did you mean 'ttm'"),
        (f"{no_task} {here}/7.npz", 2, "is not a task file (.yaml)"),
        ("evaluate", 2, "evaluate"),
        (f"{base} --batch_size many", 2, "'batch_size': must be a whole number"),
        (f"{hf} --model_args pretrained={here}/cut", 4, "cannot be loaded"),
        (hf, 2, "'pretrained' (--model_args)"),
        (f"{base} --model_args size", 2, "must be key=value, separated by commas, got 'size'"),
        (f"{base} -o {here}/file/below", 2, "cannot be written to"),
        (f"score {here}/7.npz --task winoground", 4, "has 7 groups, but task 'winoground'"),
        (f"score {here}/7.npz --task winoground --limit 7 -o {here}/file/x.json", 2, "cannot be written to"),
        (f"score {here}/no.npz --task winoground", 4, "cannot be read"),
        (f"score {here}/7.npz --task shapes_spatial", 4, "1 images, 4 captions"),
        (f"{base} --ttm --ttm_args epoch=3", 2, "did you mean 'epochs'"),
        (f"{base} --ttm --ttm_args schedule=cosin", 2, "did you mean 'cosine'"),
        (f"{base} --ttm_args lr=1e-3", 2, "ttm_args is for test-time methods"),
        (f"{base} --seeds 0,1", 2, "so it needs ttm or methods"),
        (f"{base} --ttm_preset paper", 2, "ttm_preset is for test-time methods"),
        (f"{base} --log_samples", 2, "log_samples writes a file, so it needs output_path"),
        (f"{base} --assert shape_color.group_match,none>0", 2, "did you mean 'shapes_color'"),
        (f"{base} --ttm --assert shapes_color.group_match,tmt>0 --dry_run", 2, "did you mean 'ttm'"),
        (f"{base} --assert shapes_color.group_match,none>=1.1", 3, "it is "),
        (f"{base} --assert good", 2, "cannot be read"),
        (f"{base} --seeds 1,1", 2, "different whole numbers"),
        (f"{base} --holdout x", 2, "'holdout': must be a valid number"),
        (f"--config {here}/no.yaml", 2, "cannot be read"),
        (f"--config {here}/c.yaml", 2, "did you mean 'model'"),
        ("--tasks shapes_color", 2, "--model is needed"),
        ("--model tiny-clip", 2, "--tasks is needed"),
        ("show winogruond", 2, "did you mean 'winoground'"),
        (f"{base} --task_args sede=3", 2, "did you mean 'seed'"),
    ]


def test_every_wrong_input_is_one_line_and_its_exit_code(wrong_inputs, capsys, tmp_path):
    for command, code, says in wrong_inputs:
        given = command.split()
        if given[0] == "score" and "-o" not in given:
            given += ["-o", str(tmp_path / "never.json")]
        returned, _, err = run(capsys, *given)
        lines = [line for line in err.splitlines() if line.strip()]
        assert returned == code, (command, returned, err)
        assert len(lines) == 1 and lines[0].startswith("ttmbench"), (command, err)
        assert says in lines[0], (command, lines[0])
        assert "Traceback" not in err
    assert not (tmp_path / "never.json").exists(), "no result file after an error"


def test_assertions_hold_for_stored_scores_too(tmp_path, capsys):
    file = tmp_path / "eye.npz"
    np.savez(file, scores=np.tile(np.eye(2, dtype=np.float32), (8, 1, 1)))
    words = ["score", str(file), "--task", "shapes_color", "--limit", "8", "-o", str(tmp_path / "x.json")]
    assert main([*words, "--assert", "shapes_color.group_score,none==1"]) == 0
    (tmp_path / "x.json").unlink()
    assert main([*words, "--assert", "shapes_color.group_score,none<1"]) == 3
    assert "group_score,none<1: it is 1" in capsys.readouterr().err
    assert (tmp_path / "x.json").exists(), "results are written first"
    assert main([*words, "--assert", "shape_color.group_score,none<1"]) == 2
    assert "did you mean 'shapes_color'" in capsys.readouterr().err


def test_ctrl_c_exits_130(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluator, "run_task", interrupted)
    assert run(capsys, *BASE)[0] == 130
