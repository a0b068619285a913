"""The folder of a run: one writer, no link followed, nothing left behind or lost by a kill between two steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.hookspecs import hookimpl

QUICK = {"limit": 4, "device": "cpu", "bootstrap_iters": 0}


def evaluate(path: Path, tasks: str = "shapes_color", **more):
    return ttmbench.simple_evaluate("tiny-clip", tasks, output_path=str(path), **{**QUICK, **more})


class Killed(BaseException):
    """Ends a run the hard way."""


@pytest.fixture
def victim(tmp_path) -> Path:
    """Somebody else's folder, with what a run would remove of its own."""
    folder = tmp_path / "victim"
    (folder / "tasks" / "shapes_color").mkdir(parents=True)
    (folder / "tasks" / "shapes_color" / "thesis.txt").write_text("years of work")
    (folder / "lock").write_text("")
    return folder


@pytest.mark.parametrize(("link", "overwrite"), [("", "failed"), ("tasks/shapes_color", "always"), ("lock", "failed")])
def test_a_link_in_the_state_folder_is_not_followed(tmp_path, victim, link, overwrite):
    path = tmp_path / "x.json"
    place = tmp_path / ".x.state" / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim / link)
    before = {file: file.read_bytes() for file in victim.rglob("*") if file.is_file()}
    with pytest.raises(UsageError, match=r"\.x\.state.* is a link, which no run makes or follows; remove it"):
        evaluate(path, overwrite=overwrite, ttm={"iterations": 1, "epochs": 1}, seeds=[0])
    assert {file: file.read_bytes() for file in victim.rglob("*") if file.is_file()} == before
    place.unlink()
    assert evaluate(path, overwrite=overwrite)["status"] == "done"


def test_what_a_killed_run_was_writing_is_removed(tmp_path):
    names = ("x.json", "x_samples_shapes_color.jsonl", "x_scores_shapes_color.safetensors", "y.json")
    *strays, foreign = (tmp_path / f".{name}.0123456789ab.tmp" for name in names)
    for file in (*strays, foreign):
        file.write_bytes(b"half")
    assert evaluate(tmp_path / "x.json", log_samples=True)["status"] == "done"
    assert not any(stray.exists() for stray in strays) and foreign.exists()


def test_models_adapted_from_other_weights_are_moved_aside(tmp_path, tiny_siglip, capsys):
    """The same command after the weights behind the same path have changed: nothing that was saved is lost."""
    from safetensors.torch import load_file, save_file

    model = Path(shutil.copytree(tiny_siglip, tmp_path / "model"))
    words = ["--model", "hf", "--model_args", f"pretrained={model}", "--tasks", "shapes_color,shapes_replace"]
    words += ["--limit", "6", "--ttm", "--ttm_args", "iterations=1,epochs=1,lr=1e-4", "--seeds", "0", "--device", "cpu"]
    words += ["--bootstrap_iters", "0", "-o", str(tmp_path / "x.json"), "--save_adapted", str(tmp_path / "adapted")]
    assert main(words) == 0
    first = {path.relative_to(tmp_path / "adapted"): path.read_bytes() for path in saved(tmp_path / "adapted")}
    weights = load_file(model / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, model / "model.safetensors", {"format": "pt"})
    assert main(words) == 0
    assert "held models that were adapted from other weights" in capsys.readouterr().err
    (aside,) = tmp_path.glob("adapted.*")
    assert {path.relative_to(aside): path.read_bytes() for path in saved(aside)} == first and len(first) == 2
    second = {path.relative_to(tmp_path / "adapted"): path.read_bytes() for path in saved(tmp_path / "adapted")}
    assert set(second) == set(first) and all(second[name] != first[name] for name in first)


def saved(folder: Path) -> list[Path]:
    return sorted(folder.rglob("model.safetensors"))


def test_changed_tags_run_a_task_again(tmp_path, folder_task, capsys):
    """No model sees ids and tags, and the numbers by tag are named by them."""
    folder = folder_task(
        group={"shape": [2, 2], "n_groups": 6, "id": "id", "images": ["image_0", "image_1"]}
        | {"captions": ["caption_0", "caption_1"], "tags": ["kind"]}
    )
    rows = [json.loads(line) for line in (folder / "groups.jsonl").read_text(encoding="utf-8").splitlines()]

    def write(kinds: str) -> None:
        lines = [json.dumps({**row, "kind": kind}) for row, kind in zip(rows, kinds, strict=True)]
        (folder / "groups.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    write("aaabbb")
    task, path = str(folder / "mine.yaml"), tmp_path / "x.json"
    first = evaluate(path, task)
    write("aabbbb")
    second = evaluate(path, task)
    assert "the ids or tags of task mine are not those of" in capsys.readouterr().err
    assert first["task_hashes"] == second["task_hashes"] and first["results"] == second["results"]
    assert first["breakdowns"] != second["breakdowns"]
    assert evaluate(path, task)["breakdowns"] == second["breakdowns"]
    assert "every task is done" in capsys.readouterr().err


def test_a_listener_cannot_change_the_run(tmp_path):
    class Listener:
        @hookimpl
        def ttmbench_run_started(self, config):
            config["limit"] = 999
            config["tasks"].clear()

    path = tmp_path / "x.json"
    document = evaluate(path, plugins=[("listener", Listener())])
    assert document["config"]["limit"] == 4 and document["config"]["tasks"] == ["shapes_color"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("results", "abc"),
        ("n-samples", {"original": "x"}),
        ("artifacts", 3),
        ("errors", 3),
    ],
)
def test_a_bad_row_of_an_earlier_document_is_no_end(tmp_path, capsys, key, value):
    target = tmp_path / ("x.json" if key == "results" else "folder")
    first = evaluate(target)
    (path,) = tmp_path.rglob("*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    if key == "errors":
        document["errors"] = [value]
    elif key == "artifacts":
        document["artifacts"] = {"a": value}
    elif key == "n-samples":
        document["n-samples"]["shapes_color"] = value
    else:
        document[key]["shapes_color"]["group_match,none"] = value
    path.write_text(json.dumps(document), encoding="utf-8")
    again = evaluate(target)
    assert again["status"] == "done" and again["results"] == first["results"]
    told = capsys.readouterr().err
    assert "cannot resume from " in told and ": is not a complete results document" in told and key in told
    (aside,) = tmp_path.rglob("*.damaged-*.json")
    assert json.loads(aside.read_text(encoding="utf-8")) == document
