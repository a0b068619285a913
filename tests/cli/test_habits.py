"""What users of lm-evaluation-harness type: taken, or answered with what there is instead."""

from __future__ import annotations

import json
import shlex

import pytest
import torch
from PIL import Image

import ttmbench
from ttmbench.cli import main
from ttmbench.cli.parser import COMMANDS, EXAMPLES, NOT_TAKEN, parse
from ttmbench.config import make_run_config
from ttmbench.errors import UsageError

RUN = ["-m", "tiny-clip", "--device", "cpu", "--bootstrap_iters", "20"]


def refused(capsys, *words: str) -> str:
    assert main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_share_of_the_groups(tmp_path, capsys):
    target = tmp_path / "x.json"
    assert main([*RUN, "-t", "shapes_color,shapes_spatial", "--limit", "0.033", "-o", str(target)]) == 0
    document = json.loads(target.read_text(encoding="utf-8"))
    effective = {name: counts["effective"] for name, counts in document["n-samples"].items()}
    assert effective == {"shapes_color": 7, "shapes_spatial": 7}
    assert document["config"]["limit"] == 0.033


def test_a_share_of_samples_and_of_tasks_in_memory(tmp_path, folder_task):
    folder = folder_task()
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(["g0", "g1", "g2", "g3"]), encoding="utf-8")
    common = {"device": "cpu", "bootstrap_iters": 0, "limit": 0.5}
    found = ttmbench.simple_evaluate("tiny-clip", str(folder / "mine.yaml"), samples=str(ids), **common)
    assert found["n-samples"]["mine"]["effective"] == 2
    colours = ("red", "green", "blue", "white")
    images = [
        [Image.new("RGB", (16, 16), colours[one]), Image.new("RGB", (16, 16), colours[one - 1])] for one in range(4)
    ]
    task = ttmbench.Task.from_groups(images, [[f"{one} a", f"{one} b"] for one in colours], name="own")
    assert ttmbench.simple_evaluate("tiny-clip", task, **common)["n-samples"]["own"]["effective"] == 2


@pytest.mark.parametrize("limit", ["0", "0.0", "1.5", "-1", "nan", "many"])
def test_a_limit_that_is_none(capsys, limit):
    assert "'limit': must be " in refused(capsys, *RUN, "-t", "shapes_color", f"--limit={limit}")
    with pytest.raises(UsageError, match="'limit': must be a whole number of groups from 1, or a fraction"):
        make_run_config({"model": "m", "tasks": ["t"], "limit": float(limit) if limit != "many" else limit})


def test_a_dtype_among_the_model_args(tmp_path, capsys):
    target = tmp_path / "x.json"
    words = [*RUN, "-a", "dtype=bfloat16", "-t", "shapes_color", "-L", "2", "-o", str(target)]
    assert main(words) == 0, capsys.readouterr().err
    assert json.loads(target.read_text(encoding="utf-8"))["model_info"]["fingerprint"]["dtype"] == "bfloat16"
    assert "fp32" in refused(capsys, *RUN, "-t", "shapes_color", "--dtype", "int8")


def test_verbosity_in_capitals(capsys):
    assert main([*RUN, "--tasks", "nothing", "--verbosity", "DEBUG"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert "'info', 'debug'" in refused(capsys, *RUN, "--tasks", "shapes_color", "--verbosity", "WARNING")


@pytest.mark.parametrize("option", sorted(NOT_TAKEN))
def test_what_is_not_taken_is_answered(capsys, option):
    line = refused(capsys, *RUN, "--tasks", "shapes_color", option, "3")
    assert f"{option} is not supported: {NOT_TAKEN[option]}" in line


def test_help_is_a_command(capsys):
    assert main(["help"]) == 0 and "evaluate:" in capsys.readouterr().out
    assert main(["help", "run"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for said in (*(f"(default: {value})" for value in ("64", "auto", "fp32", "0", "raise")), "-L N", "-b N"):
        assert said in text, said
    assert "--ttm Adapt the model with test-time matching: --methods ttm --ttm_args" in text, (
        "a switch has no default to say"
    )
    assert refused(capsys, "help", "rum")
    assert "`ttmbench show TASK`" in refused(capsys, "power", "winoground"), "a command of before names what there is"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_examples_that_it_takes(name):
    assert EXAMPLES[name]
    for example in EXAMPLES[name]:
        options = parse(shlex.split(example)[1:])
        assert options.command == name and options.execute


TWICE = ["--model a -t x --model b", "-m a -t x --tasks y", "-m a -a k=x -a k=y"]
TWICE += ["--seeds 0 --seeds 1", "doctor -M a -M b"]


@pytest.mark.parametrize("words", TWICE)
def test_an_option_given_twice_is_an_error(words, capsys):
    assert f"{words.split()[-2]} is given twice" in refused(capsys, *words.split())


def test_assertions_may_be_repeated():
    asked = ["shapes_color:group_score>0.1", "shapes_color:group_match>0.1"]
    assert parse(["-m", "a", "--assert", asked[0], "--assert", asked[1]]).assertions == asked


def model_of(module):
    return type("CLIP", (torch.nn.Module,), {"__module__": module, "save_pretrained": 0, "get_image_features": 0})()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (object(), "docs/add-an-adapter"),
        (torch.nn.Linear(2, 2), "docs/add-an-adapter"),
        (model_of("transformers.models.clip.modeling_clip"), r"processor=AutoProcessor"),
        (model_of("open_clip.model"), r"simple_evaluate\(\(model, preprocess, tokenizer\)"),
    ],
)
def test_an_object_that_is_no_adapter_gets_what_works(given, says):
    with pytest.raises(UsageError, match=says):
        ttmbench.simple_evaluate(given, "shapes_color")
