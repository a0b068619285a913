"""``ttmbench validate RESULT`` and ``submit``: numbers are computed again from what a run stored, and compared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from support.chat_server import ChatServer

from ttmbench._util.arrays import read_arrays
from ttmbench.cli import main

RESULTS = Path(__file__).resolve().parents[2] / "results"
COLOR, PLACE, RETRIEVAL = "shapes_color", "shapes_place", "shapes_retrieval"
RUNS = {
    "scores": f"--model tiny-clip --tasks {COLOR},shapes_replace --limit 12 --methods ttm,oracle,placebo --holdout 0.5 "
    f"--ttm_args iterations=2,epochs=1 --also {PLACE} --seeds 0,1",
    "methods": f"--model tiny-clip --tasks {COLOR} --limit 12 --methods dual_softmax,dn,tent --seeds 0,1",
    "ranks": f"--model tiny-clip --tasks {RETRIEVAL},shapes_naming --limit 6",
    "answers": f"--model openai --tasks {COLOR} --limit 3",
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Name -> folder of a run, made when it is first asked for."""
    folder, server = tmp_path_factory.mktemp("runs"), ChatServer()

    def run(name: str) -> Path:
        if not (folder / name).exists():
            server_args = f"model=m,scorer=choice,base_url={server.url},cache={folder / 'answers.sqlite'}"
            words = RUNS[name].split() + (["--model_args", server_args] if name == "answers" else [])
            kept = "--log_samples --save_scores --bootstrap_iters 20 --interval percentile --output_path"
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("OPENAI_API_KEY", "none")
                assert main([*words, *kept.split(), str(folder / name / "x.json")]) == 0
        return folder / name

    yield run
    server.stop()


class Copy:
    """A copy of a run that can be edited."""

    def __init__(self, honest: Path, folder: Path) -> None:
        shutil.copytree(honest, folder)
        self.folder, self.path = folder, folder / "x.json"
        self.document = json.loads(self.path.read_text(encoding="utf-8"))

    def put(self, *path: str, to: object) -> None:
        here = self.document
        for key in path[:-1]:
            here = here[key]
        assert here[path[-1]] != to
        here[path[-1]] = to

    def file(self, kind: str, task: str) -> Path:
        about = self.document["artifacts"].items()
        return self.folder / next(name for name, one in about if (one["kind"], one["task"]) == (kind, task))

    def edit_arrays(self, kind: str, task: str, edit: Callable[[dict], object], **about: object) -> None:
        """Edits arrays, and what their file says of itself, and states the file's new digest."""
        path = self.file(kind, task)
        arrays, stated = load_file(path), read_arrays(path).about
        edit(arrays)
        path.write_bytes(save(arrays, metadata={"ttmbench": json.dumps({**stated, **about}, sort_keys=True)}))
        self.sign(path)

    def sign(self, path: Path) -> None:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        self.document["artifacts"][path.name] |= {"sha256": digest, "bytes": len(content)}

    def validate(self, *more: str) -> int:
        self.path.write_text(json.dumps(self.document), encoding="utf-8")
        return main(["validate", str(self.path), *more])


@pytest.fixture
def copy(honest, tmp_path):
    return lambda name: Copy(honest(name), tmp_path / name)


@pytest.mark.parametrize("name", RUNS)
def test_an_honest_run_passes(honest, name, capsys):
    assert main(["validate", str(honest(name)), "--complete"]) == 0
    out = capsys.readouterr().out
    assert ": ok; " in out and "note" not in out and "not computed" not in out, out


def higher(arrays: dict) -> None:
    """The first group's first pair gets a higher score."""
    name = next(name for name in arrays if name.startswith("scores.none"))
    arrays[name] = arrays[name].copy()
    arrays[name][0] = arrays[name][0][::-1] + 1


def reversed_groups(arrays: dict) -> None:
    """A method's scores are those of other groups."""
    arrays["scores.dn.0"] = arrays["scores.dn.0"][::-1].copy()


def first(arrays: dict) -> None:
    """Every query finds its own first."""
    for name in arrays:
        if name.endswith(("strict", "as_topk", "above")):
            arrays[name] = np.zeros_like(arrays[name])


def other_id(copy: Copy) -> None:
    ids = json.loads(read_arrays(copy.file("scores", COLOR)).about["group_ids"])
    copy.edit_arrays("scores", COLOR, lambda arrays: None, group_ids=json.dumps(["x", *ids[1:]]))


def not_a_number(arrays: dict) -> None:
    arrays["scores.none.0"] = np.full_like(arrays["scores.none.0"], np.nan)


def right_answer(copy: Copy) -> None:
    """An answer that was wrong names the correct option."""
    path = copy.file("samples", COLOR)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    wrong = next(one for line in lines for one in line["answers"] if not one["right"])
    at = wrong["order"].index(int(wrong["question"].split()[1]) - 1)
    wrong["answer"] = "AB"[at] if wrong["question"].startswith("image") else ("first", "second")[at]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    copy.sign(path)


def iteration(copy: Copy) -> None:
    copy.document["methods"][COLOR]["ttm"]["iterations"][1]["metrics"]["group_match"] += 0.01


CHANGES = {
    "a metric": ("scores", lambda copy: copy.put("results", COLOR, "group_match,ttm", to=0.123), "group_match,ttm"),
    "a mean over tags": ("scores", lambda copy: copy.document["breakdowns"].pop(COLOR), f"breakdowns.{COLOR}"),
    "an interval": ("scores", lambda copy: copy.put("ci", COLOR, "group_score,none", to=[0.1, 0.2]), f"ci.{COLOR}"),
    "a chance level": ("scores", lambda copy: copy.put("chance", COLOR, "group_score", to=0.3), f"chance.{COLOR}"),
    "a track": ("scores", lambda copy: copy.put("tracks", COLOR, "group_match,ttm", to="zero_shot"), "tracks"),
    "a count": ("scores", lambda copy: copy.put("n-samples", COLOR, "effective", to=13), "n-samples"),
    "an iteration": ("scores", iteration, "iteration 2"),
    "another task": (
        "scores",
        lambda copy: copy.put("also", COLOR, PLACE, "results", "group_match,ttm", to=0.123),
        f"also.{COLOR}.{PLACE}",
    ),
    "a score": ("scores", lambda copy: copy.edit_arrays("scores", COLOR, higher), f"results.{COLOR}"),
    "a group id": ("scores", other_id, "group ids"),
    "a digest of the data": ("scores", lambda copy: copy.put("task_hashes", COLOR, to="0" * 64), "data_sha256"),
    "a NaN": ("scores", lambda copy: copy.edit_arrays("scores", COLOR, not_a_number), "nan"),
    "a file": ("scores", lambda copy: copy.file("scores", COLOR).unlink(), "artifacts.x_scores_shapes_color"),
    "a file's content": (
        "scores",
        lambda copy: copy.file("iterations", COLOR).write_text("{}"),
        "artifacts.x_iterations",
    ),
    "a method's metric": (
        "methods",
        lambda copy: copy.put("results", COLOR, "group_score,dn", to=0.123),
        "group_score,dn",
    ),
    "a method's score": ("methods", lambda copy: copy.edit_arrays("scores", COLOR, reversed_groups), f"ci.{COLOR}"),
    "ranks": ("ranks", lambda copy: copy.edit_arrays("ranks", RETRIEVAL, first), f"results.{RETRIEVAL}"),
    "a recall": (
        "ranks",
        lambda copy: copy.put("results", RETRIEVAL, "i2t_recall_at_1,none", to=0.123),
        "i2t_recall_at_1",
    ),
    "an answer": ("answers", right_answer, f"results.{COLOR}"),
    "orders of options": ("answers", lambda copy: copy.put("choice", COLOR, "orders", to=2), "answers of"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_result_is_refused(copy, what, capsys):
    run, change, place = CHANGES[what]
    changed = copy(run)
    change(changed)
    assert changed.validate() == 3
    out = capsys.readouterr().out
    assert place in out and ": ok; " not in out, out


def test_a_nan_in_the_document_is_refused(copy):
    changed = copy("methods")
    changed.put("results", COLOR, "group_score,none", to=float("nan"))
    assert changed.validate() == 4


def test_results_without_stored_scores_are_not_complete(copy, capsys):
    changed = copy("methods")
    changed.document["artifacts"].clear()
    assert changed.validate() == 0
    assert f"no scores, ranks or answers are stored: {COLOR}" in capsys.readouterr().out
    assert changed.validate("--complete") == 3
    for key in ("results", "choice", "configs", "versions", "datasets", "task_status"):
        changed.document.get(key, {}).clear()
    assert changed.validate() == 3 and "no task is finished" in capsys.readouterr().out


def test_a_plain_run_is_checked_by_samples(tmp_path, capsys):
    words = f"--model tiny-clip --tasks {COLOR} --limit 8 --metrics global_assignment_accuracy,text_ece --output_path"
    assert main([*words.split(), str(tmp_path / "run" / "x.json")]) == 0
    plain = Copy(tmp_path / "run", tmp_path / "copy")
    assert plain.validate() == 0
    assert f"answers are stored: {COLOR} (global_assignment_accuracy" in capsys.readouterr().out
    plain.put("ci", COLOR, "group_score,none", to=[0.1, 0.2])
    assert plain.validate() == 3 and f"ci.{COLOR}.group_score,none" in capsys.readouterr().out


def test_a_link_beside_the_document_is_not_followed(copy, capsys):
    changed = copy("methods")
    path = changed.file("scores", COLOR)
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))
    assert changed.validate() == 3 and "not a regular file" in capsys.readouterr().out


def test_without_the_data_numbers_are_still_compared(copy, capsys):
    changed = copy("scores")
    assert changed.validate("--schema_only") == 0
    changed.put("ties", COLOR, "group_match,none", to=5)
    assert changed.validate("--schema_only") == 3


@pytest.mark.parametrize("folder", ["submissions", "reference"])
def test_results_of_this_repository_pass(folder):
    assert main(["validate", str(RESULTS / folder), *(["--complete"] if folder == "submissions" else [])]) == 0


def test_submit_copies_what_passes(honest, tmp_path, capsys):
    assert main(["submit", str(honest("methods")), "--repository", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "git switch -c NAME" in said.out and "rank nowhere" in said.err and "captions" in said.err
    folder = tmp_path / "results" / "submissions"
    assert {path.name for path in (folder / "tiny-clip").iterdir()} == {
        *("x.json", "x_scores_shapes_color.safetensors", "x_samples_shapes_color.jsonl")
    }
    assert main(["validate", str(folder), "--complete"]) == 0
    assert main(["submit", str(honest("methods")), "--repository", str(tmp_path)]) == 0, "the same again"
    assert main(["submit", str(honest("scores")), "--repository", str(tmp_path)]) == 2, "another of this name"


def test_submit_refuses_what_does_not_pass(copy, tmp_path):
    changed = copy("methods")
    changed.put("results", COLOR, "group_score,none", to=0.123)
    assert changed.validate() == 3
    assert main(["submit", str(changed.path), "--repository", str(tmp_path / "to")]) == 3
    assert not (tmp_path / "to").exists()


def test_submit_refuses_large_files(honest, tmp_path, monkeypatch):
    monkeypatch.setattr("ttmbench.cli.submit.MOST_BYTES", 100)
    assert main(["submit", str(honest("methods")), "--repository", str(tmp_path)]) == 2
