"""Submissions of retrieval, classification and forced choices, by the commands that make and check them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from support.chat_server import ChatServer
from support.submissions import Forgery, put

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


def fewer_candidates(forged):
    """Among half as many classes, said by the file alone."""
    path = forged.file("ranks", NAMING)
    arrays, about = load_file(path), read_arrays(path).about
    about["candidates"]["class"] //= 2
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
    (
        "ranked",
        put("results", RETRIEVAL, "i2t_recall_at_1,none", to=1.0),
        "results.shapes_retrieval.i2t_recall_at_1,none",
    ),
    ("ranked", put("ci", NAMING, "accuracy_top1,none", to=[0.9, 1.0]), "ci.shapes_naming.accuracy_top1,none: is [0.9"),
    ("ranked", edited_ranks, "bytes, the document says "),
    ("ranked", lambda forged: better_ranks(forged, NAMING, "class"), "results.shapes_naming.accuracy_top1,none: is "),
    ("ranked", fewer_candidates, "queries and candidates of its ranks are not those of the task's data"),
    ("ranked", edited_ranks_of_samples, "x_samples_shapes_naming.jsonl: line "),
    ("ranked", edited_metrics_of_ranked_samples, "'t2i_recall_at_1': 1.5"),
    (
        "ranked",
        lambda forged: forged.edit_lines("samples", lambda found: found.pop(), task=RETRIEVAL),
        "has 17 lines, the",
    ),
    ("ranked", ranks_of_another_task, "results.shapes_naming: queries and candidates of its ranks are not those"),
    ("ranked", put("ranking", NAMING, "candidates", "class", to=2), "ranking.shapes_naming.candidates.class: is 2"),
    (
        "ranked",
        lambda forged: forged.document["artifacts"].pop(forged.file("ranks", NAMING).name),
        "results.shapes_naming: cannot be checked: there is no file x_ranks_shapes_naming.safetensors (--save_scores",
    ),
    ("choice", put("results", COLOR, "group_score,choice", to=1.5), "is not a complete results document"),
    ("choice", put("results", COLOR, "text_score,choice", to=0.9), "results.shapes_color.text_score,choice: is 0.9"),
    ("choice", edited_answers, "x_samples_shapes_color.jsonl: line 1: answers is "),
    ("choice", right_answers, "x_samples_shapes_color.jsonl: line "),
    ("choice", lambda forged: forged.edit_lines("samples", lambda found: found[0]["answers"].pop()), "answers to "),
    ("choice", lambda forged: forged.edit_lines("samples", lambda found: found.pop()), "answers to "),
    ("choice", put("choice", COLOR, "orders", to=2), "choice.shapes_color.orders: is 2"),
    ("choice", put("choice", COLOR, "prompts", "text", to="Say 1."), "choice.shapes_color.prompts.text: is Say 1."),
    ("choice", lambda forged: forged.document.pop("choice"), "choice.shapes_color is missing"),
    (
        "choice",
        lambda forged: forged.document["artifacts"].pop(forged.file("samples").name),
        "cannot be checked: there is no file x_samples_shapes_color.jsonl (--log_samples writes it)",
    ),
]


@pytest.mark.parametrize(("kind", "forge", "said"), FORGERIES)
def test_a_forgery_of_ranks_or_answers_is_refused_with_its_reason(forged, capsys, kind, forge, said):
    one = forged(kind)
    forge(one)
    assert main(["validate", str(one.save())]) in (3, 4)
    out = capsys.readouterr().out
    assert said in out and "sound" not in out, out[:2000]
