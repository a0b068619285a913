"""Submissions of retrieval, classification and forced choices, by the commands that make and check them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from support.chat_server import ChatServer
from support.submissions import Forgery, put, stated

from ttmbench._util.arrays import read_arrays
from ttmbench.cli import main

RETRIEVAL, NAMING, COLOR = "shapes_retrieval", "shapes_naming", "shapes_color"


def run(words: str) -> None:
    """What is typed, with the command in the document."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["ttmbench", *words.split()])
        patched.setenv("OPENAI_API_KEY", "none")
        assert main(words.split()) == 0


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Folder -> a run of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    kept = "--log_samples --save_scores --bootstrap_iters 20 --output_path"
    run(f"--model tiny-clip --tasks shapes_retrieval,shapes_naming --limit 6 {kept} {folder / 'ranked' / 'x.json'}")
    server = ChatServer()
    model = f"model=m,scorer=choice,base_url={server.url},cache={folder / 'answers.sqlite'}"
    run(f"--model openai --model_args {model} --tasks shapes_color --limit 3 {kept} {folder / 'choice' / 'x.json'}")
    server.stop()
    return folder


@pytest.fixture
def forged(honest, tmp_path):
    return lambda kind: Forgery(honest / kind, tmp_path / kind)


@pytest.mark.parametrize("kind", ["ranked", "choice"])
def test_what_a_run_wrote_is_sound(honest, kind, capsys):
    assert main(["validate", str(honest / kind / "x.json")]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and ": ok; " in out and "could not" not in out


# ---- forgeries: what was done, and what is said


def edited_ranks(forged):
    path = forged.file("ranks", NAMING)
    path.write_bytes(path.read_bytes() + b" ")


def better_ranks(forged, task, scope):
    """Every query finds its own first, with the file's digest."""
    path = forged.file("ranks", task)
    arrays, about = load_file(path), read_arrays(path).about
    for name in arrays:
        if scope in name and name.endswith(("strict", "as_topk", "above")):
            arrays[name] = np.zeros_like(arrays[name])
    path.write_bytes(save(arrays, metadata={"ttmbench": json.dumps(about, sort_keys=True)}))
    forged.sign(path)


def edited_ranks_of_samples(forged):
    forged.edit_lines("samples", lambda found: [one["ranks"].update(strict=0) for one in found], task=NAMING)


def edited_metrics_of_ranked_samples(forged):
    forged.edit_lines("samples", lambda found: found[-1]["metrics"].update(t2i_recall_at_1=1.5), task=RETRIEVAL)


def ranks_of_another_task(forged):
    path = forged.file("ranks", NAMING)
    path.write_bytes(forged.file("ranks", RETRIEVAL).read_bytes())
    forged.sign(path)


def edited_answers(forged):
    """An answer is called right, and is not what was chosen."""
    forged.edit_lines("samples", lambda found: [each.update(right=True) for each in found[0]["answers"]])


def right_answers(forged):
    """Every answer is right, in the samples and nowhere else."""

    def edit(found):
        for one in (each for line in found for each in line["answers"]):
            one.update(chosen=int(one["question"].split()[1]) - 1, right=True)

    forged.edit_lines("samples", edit)


FORGERIES = [
    ("ranked", *stated("results/shapes_retrieval/i2t_recall_at_1,none", 1.0, "its ranks give ")),
    ("ranked", *stated("results/shapes_naming/accuracy_top1,none", 1.0, "its ranks give ")),
    ("ranked", *stated("ci/shapes_naming/accuracy_top1,none", [0.9, 1.0], "its ranks give [")),
    ("ranked", edited_ranks, "bytes, the document says "),
    ("ranked", lambda forged: better_ranks(forged, NAMING, "class"), "results.shapes_naming.accuracy_top1,none: is "),
    (
        "ranked",
        edited_ranks_of_samples,
        "x_samples_shapes_naming.jsonl: line ",
    ),
    ("ranked", edited_metrics_of_ranked_samples, "'t2i_recall_at_1': 1.5"),
    (
        "ranked",
        lambda forged: forged.edit_lines("samples", lambda found: found.pop(), task=RETRIEVAL),
        "x_samples_shapes_retrieval.jsonl: has 11 lines of 't2i', the file of ranks 12 queries",
    ),
    ("ranked", ranks_of_another_task, "x_ranks_shapes_naming.safetensors.task: is shapes_retrieval, the document says"),
    ("ranked", *stated("ranking/shapes_naming/candidates/class", 2, "its ranks have 64")),
    (
        "ranked",
        lambda forged: forged.document["artifacts"].pop(forged.file("ranks", NAMING).name),
        "results.shapes_naming: cannot be checked: there is no file of ranks (--save_scores)",
    ),
    ("choice", *stated("results/shapes_color/group_score,choice", 1.0, "its answers give ")),
    ("choice", edited_answers, "'right' is True, the choice is False"),
    ("choice", right_answers, "its answers give 1.0"),
    (
        "choice",
        lambda forged: forged.edit_lines("samples", lambda found: found[0]["metrics"].update(group_score=1.5)),
        "x_samples_shapes_color.jsonl: line 1: metrics is {",
    ),
    (
        "choice",
        lambda forged: forged.edit_lines("samples", lambda found: found[0]["answers"].pop()),
        "line 1 has not 1 answers to each question of side ",
    ),
    (
        "choice",
        lambda forged: forged.edit_lines("samples", lambda found: found.pop()),
        "n-samples.shapes_color.effective: is 3, its samples have 2",
    ),
    ("choice", put("choice", COLOR, "orders", to=2), "has not 2 answers to each question of side "),
    (
        "choice",
        lambda forged: forged.document.pop("choice"),
        "choice.shapes_color: is missing; it says how forced choices were asked",
    ),
    (
        "choice",
        lambda forged: forged.document["artifacts"].pop(forged.file("samples").name),
        "cannot be checked: answers are in the samples (--log_samples), and there are none",
    ),
]


@pytest.mark.parametrize(("kind", "forge", "said"), FORGERIES)
def test_a_forgery_of_ranks_or_answers_is_refused_with_its_reason(forged, capsys, kind, forge, said):
    one = forged(kind)
    forge(one)
    assert main(["validate", str(one.save()), "--schema_only"]) == 3
    out = capsys.readouterr().out
    assert said in out and "sound" not in out, out[:2000]
