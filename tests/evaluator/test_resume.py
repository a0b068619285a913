"""The same command again: what is done stays, what was stopped goes on, nothing is lost or left in the run's folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image
from support import processes
from support.checkpoints import finished_iterations
from support.documents import schema, without_times
from support.small_models import Killed

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.evaluator import evaluate as evaluator
from ttmbench.hookspecs import hookimpl
from ttmbench.methods import runner as checkpoints
from ttmbench.methods.runner import SeedCheckpoint, SeedRun, TaskCheckpoint
from ttmbench.methods.training import Iteration, TrainingState
from ttmbench.model_adapters import embeddings, hf

QUICK = {"limit": 6, "device": "cpu", "bootstrap_iters": 20}
SHORT = {"iterations": 3, "epochs": 1, "keep_optimizer_state": True}


def evaluate(path, tasks="shapes_color,shapes_spatial", **more):
    settings = {"ttm": SHORT, "seeds": [0, 1], "output_path": str(path), "log_samples": True, **QUICK, **more}
    return ttmbench.simple_evaluate("tiny-clip", tasks, **settings)


def killed_after(monkeypatch, iterations: int) -> list[int]:
    """Kills the process after so many finished iterations; the list grows by one with each that is trained."""
    trained: list[int] = []
    keep = SeedCheckpoint.keep

    def kept(self, run, state=None):
        keep(self, run, state)
        trained.extend([] if state is None else [state.turns])
        if state is not None and len(trained) == iterations:
            raise Killed

    monkeypatch.setattr(SeedCheckpoint, "keep", kept)
    return trained


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "x.json"
    # Two iterations: the second goes on from what the first kept, as every later one does.
    variants: dict[str, Any] = {"methods": ["overfit", "oracle", "placebo"], "holdout": 0.5}
    variants |= {"ttm": {**SHORT, "iterations": 2}, "limit": 4}
    return evaluate(path, tasks="shapes_color,shapes_color_global", audit_labels=True, **variants).document, variants


def test_a_run_killed_again_and_again_keeps_its_without_times(tmp_path, monkeypatch, undisturbed):
    """Each life is some iterations longer than the one before."""
    more = 5
    expected, variants = undisturbed
    path = tmp_path / "x.json"
    for life in range(100):
        with monkeypatch.context() as patched:
            trained = killed_after(patched, 1 + more * life)
            try:
                done = evaluate(path, tasks="shapes_color,shapes_color_global", audit_labels=True, **variants)
                break
            except Killed:
                assert len(trained) == 1 + more * life, "none is trained twice"
                assert json.loads(path.read_text(encoding="utf-8"))["status"] == "interrupted"
    assert life > 2, "killed in some variants of both tasks"
    assert without_times(done.document) == without_times(expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["x.json", *expected["artifacts"]])
    jsonschema.Draft202012Validator(schema("results")).validate(done.document)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Makes a copy of a finished run in a folder or a file; the run itself is done once for each way to do it."""
    made: dict[str, tuple[Path, ttmbench.EvalResults]] = {}

    def copy(output: Path, tasks: str, **more: Any) -> tuple[dict[str, Any], Path]:
        key = repr((output.suffix, tasks, sorted(more)))
        if key not in made:
            place = tmp_path_factory.mktemp("finished")
            made[key] = place, evaluate(place / output.name if output.suffix else place, tasks=tasks, **more)
        place, run = made[key]
        folder = output.parent if output.suffix else output
        shutil.copytree(place, folder, dirs_exist_ok=True)
        assert run.path is not None
        return run.document, folder / run.path.relative_to(place)

    return copy


BOTH = "shapes_color,shapes_spatial"


def test_done_tasks_are_not_run_again(tmp_path, capsys, monkeypatch, finished):
    document, path = finished(tmp_path, BOTH)

    def no_task(*_):
        raise AssertionError("a task was run")

    monkeypatch.setattr("ttmbench.evaluator.evaluate.run_task", no_task)
    again = evaluate(tmp_path, batch_size=3)
    assert without_times(again.document) == without_times(document) and again.path == path
    assert "every task is done (--overwrite always runs them again)" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--overwrite never"):
        evaluate(tmp_path, overwrite="never")


def test_overwrite_always_runs_everything_and_leaves_a_folders_old_document(tmp_path, finished):
    document, path = finished(tmp_path, "shapes_color")
    second = evaluate(tmp_path, tasks="shapes_color", overwrite="always")
    assert path != second.path and path.exists()
    assert without_times(document)["results"] == without_times(second.document)["results"]


def test_a_file_of_another_run_is_never_replaced_unasked(tmp_path, capsys, finished):
    path = tmp_path / "x.json"
    finished(path, "shapes_color")
    scores = tmp_path / "stored.npz"
    np.savez(scores, scores=np.eye(2, dtype=np.float32)[None].repeat(200, 0))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for more, named in (({"limit": 10}, "--limit"), ({"seeds": [0]}, "--seeds")):
        with pytest.raises(UsageError, match=rf"x\.json holds another run \(other {named}\).*--overwrite always"):
            evaluate(path, tasks="shapes_color", **more)
    assert (
        main(["score", str(scores), "--task", "shapes_color", "-o", str(path)]) == 2
        and "holds another run" in capsys.readouterr().err
    )
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert evaluate(path, tasks="shapes_color", limit=10, overwrite="always")["status"] == "done"


def test_a_file_that_is_no_document_is_never_replaced_unasked(tmp_path, capsys):
    path, scores = tmp_path / "x.json", tmp_path / "scores.npz"
    np.savez(scores, scores=np.eye(2, dtype=np.float32)[None].repeat(4, 0))
    command = ["score", str(scores), "--task", "shapes_color", "--limit", "4", "-o", str(path)]
    path.write_text('{"mine": 1}', encoding="utf-8")
    with pytest.raises(UsageError, match="is not a results document of ttmbench"):
        plain_run(path)
    assert main(command) == 2 and "is not a results document" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == '{"mine": 1}'
    assert plain_run(path, overwrite="always")["status"] == "done"
    path.unlink()
    assert [main(command), main(command)] == [0, 0], "stored scores are read again"


def test_another_model_under_the_same_name_starts_anew(tmp_path, capsys, monkeypatch):
    """In a folder; a file and models that were adapted from the other weights are left alone."""

    def run(name: str, **more: Any) -> ttmbench.EvalResults:
        return plain_run(tmp_path / name, ttm={"iterations": 1, "epochs": 1}, seeds=[0], **more)

    saves = {"save_adapted": str(tmp_path / "adapted")}
    path = run("x.json").path
    run("folder")
    run("saving", **saves)
    before = {file: file.read_bytes() for file in (path, *(tmp_path / "adapted").rglob("*.safetensors"))}
    declared = hf.TransformersModel.fingerprint
    monkeypatch.setattr(hf.TransformersModel, "fingerprint", lambda self: {**declared(self), "weights": "others"})
    for name, more in (("x.json", {}), ("saving", saves)):
        with pytest.raises(UsageError, match="is not the one of"):
            run(name, **more)
    assert {file: file.read_bytes() for file in before} == before and len(before) == 2
    run("folder")
    assert "is not the one of" in capsys.readouterr().err
    assert len(list((tmp_path / "folder").rglob("results_*.json"))) == 2


def test_a_run_that_ends_before_its_model_is_there_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    with monkeypatch.context() as patched:
        run_tasks(patched, "shapes_spatial")
        evaluate(path, on_error="continue")
    before = path.read_text(encoding="utf-8")
    for error in (KeyboardInterrupt(), DataError("weights out of reach")):
        with monkeypatch.context() as patched, pytest.raises(type(error)):

            def no_adapter(*_, error=error):
                raise error

            patched.setattr("ttmbench.evaluator.evaluate.make_adapter", no_adapter)
            evaluate(path)
        assert path.read_text(encoding="utf-8") == before
    assert evaluate(path)["task_status"] == {"shapes_color": "done", "shapes_spatial": "done"}


def test_a_changed_samples_file_is_noticed(tmp_path, capsys, finished):
    document, path = finished(tmp_path, BOTH)
    (samples,) = path.parent.glob("samples_shapes_color_*.jsonl")
    samples.write_text("{}", encoding="utf-8")
    again = evaluate(tmp_path)
    assert "is missing or changed; task shapes_color is run again" in capsys.readouterr().err
    assert without_times(again.document) == without_times(document)


def evaluate_folder(folder, path, **more):
    common = {"output_path": str(path), "log_samples": True, **QUICK, **more}
    return ttmbench.simple_evaluate("tiny-clip", [str(folder / "mine.yaml"), "shapes_color"], **common)


def run_tasks(monkeypatch, failing: str = "") -> list[str]:
    """Names of the tasks that are run from now on; one of them fails."""
    real, names = evaluator.run_task, []

    def run_task(context, task, *rest):
        names.append(task.spec.task)
        if task.spec.task == failing:
            raise TtmbenchError("this one fails")
        return real(context, task, *rest)

    monkeypatch.setattr(evaluator, "run_task", run_task)
    return names


def change_an_image(folder):
    path = folder / "images" / "2_1.png"
    with Image.open(path) as image:
        changed = image.copy()
    changed.putpixel((3, 4), (1, 2, 3))
    changed.save(path)


def change_a_caption(folder):
    rows = folder / "groups.jsonl"
    rows.write_text(rows.read_text(encoding="utf-8").replace("a red circle", "a blue circle", 1), encoding="utf-8")


@pytest.mark.parametrize("kept", ["off", "store"])
@pytest.mark.parametrize("change", [change_an_image, change_a_caption])
def test_a_task_whose_data_changed_is_run_again(tmp_path, capsys, monkeypatch, folder_task, change, kept):
    folder, path = folder_task(), tmp_path / "x.json"
    store = kept if kept == "off" else str(tmp_path / kept)
    first = evaluate_folder(folder, path, use_cache=store)
    names = run_tasks(monkeypatch)
    same = evaluate_folder(folder, path, use_cache=store)
    assert names == [] and without_times(same.document) == without_times(first.document)
    change(folder)
    capsys.readouterr()
    again = evaluate_folder(folder, path, use_cache=store)
    told = capsys.readouterr().err.splitlines()
    assert names == ["mine"], "the other task stays"
    assert told[0] == f"ttmbench: the data of task mine are not those of {path}; it is run again"
    assert told[1].endswith("shapes_color done, 1 left")
    assert again["task_hashes"]["mine"] != first["task_hashes"]["mine"]
    assert again["task_hashes"]["shapes_color"] == first["task_hashes"]["shapes_color"]
    fresh = evaluate_folder(folder, tmp_path / "fresh" / "x.json")
    for key in ("results", "task_hashes", "task_status"):
        assert again[key] == fresh[key], key
    samples = [next(one.parent.glob("x_samples_mine.jsonl")).read_text() for one in (path, fresh.path)]
    assert samples[0] == samples[1]


def test_numbers_stay_where_the_data_are_out_of_reach(tmp_path, capsys, monkeypatch, folder_task):
    folder, path = folder_task(), tmp_path / "x.json"
    first = evaluate_folder(folder, path)
    (folder / "images").rename(tmp_path / "elsewhere")
    names = run_tasks(monkeypatch)
    capsys.readouterr()
    again = evaluate_folder(folder, path)
    told = [line for line in capsys.readouterr().err.splitlines() if "mine" in line]
    assert names == [] and without_times(again.document) == without_times(first.document)
    assert told[0].startswith("ttmbench: the numbers of task mine stay, but its data cannot be looked at: ")
    assert "0_0.png" in told[0]


def test_stored_features_are_the_data_of_their_model(tmp_path, capsys, monkeypatch):
    """The file's digest is not a part of an adapter that states none; its features are looked at all the same."""
    monkeypatch.setattr(embeddings.EmbeddingsModel, "fingerprint", lambda self: {"features": "some"})
    rng, path = np.random.default_rng(0), tmp_path / "x.json"

    def evaluate_features():
        model = embeddings.load(path=str(tmp_path / "features.npz"), device="cpu")
        return ttmbench.simple_evaluate(model, "shapes_color", output_path=str(path), **QUICK)

    arrays = {name: rng.normal(size=(12, 8)).astype(np.float32) for name in ("img", "cap")}
    np.savez(tmp_path / "features.npz", **arrays)
    first = evaluate_features()
    names = run_tasks(monkeypatch)
    assert without_times(evaluate_features().document) == without_times(first.document) and names == []
    arrays["cap"][3] += 1
    np.savez(tmp_path / "features.npz", **arrays)
    again = evaluate_features()
    assert names == ["shapes_color"] and again["task_hashes"] != first["task_hashes"]
    assert "the data of task shapes_color are not those of" in capsys.readouterr().err


def test_failed_tasks_are_run_again_unless_only_missing_ones_are_asked_for(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        run_tasks(patched, "shapes_color")
        broken = evaluate(tmp_path, on_error="continue")
    assert broken["task_status"] == {"shapes_color": "failed", "shapes_spatial": "done"}
    assert broken["errors"] == [
        {"task": "shapes_color", "stage": "run", "type": "TtmbenchError", "message": "this one fails"}
    ]
    left = evaluate(tmp_path, on_error="continue", overwrite="missing")
    assert left["task_status"] == broken["task_status"] and left["errors"] == broken["errors"]
    mended = evaluate(tmp_path)
    assert mended["task_status"] == {"shapes_color": "done", "shapes_spatial": "done"} and not mended["errors"]
    assert mended.path == broken.path and list(mended.group_values) == ["shapes_spatial", "shapes_color"]


def test_data_of_a_failed_task_are_not_looked_at_again(folder_task, tmp_path, capsys):
    folder = folder_task()
    (folder / "images").rename(tmp_path / "elsewhere")
    for overwrite in ("never", "missing"):
        left = evaluate_folder(folder, tmp_path / "x.json", on_error="continue", overwrite=overwrite)
        assert left["task_status"]["mine"] == "failed"
    assert "cannot be looked at" not in capsys.readouterr().err


def test_a_loss_that_is_not_finite_keeps_what_was_reached_before(tmp_path, monkeypatch):
    real, calls = hf.TransformersModel.matching_loss, []

    def loss(self, images, captions):
        calls.append(1)
        return real(self, images, captions) * (torch.nan if len(calls) > 2 else 1.0)

    monkeypatch.setattr(hf.TransformersModel, "matching_loss", loss)
    path = tmp_path / "x.json"
    with pytest.raises(TtmbenchError, match="the loss became nan in epoch 1"):
        evaluate(path, tasks="shapes_color")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["status"] == "failed" and document["task_status"] == {"shapes_color": "failed"}
    assert document["errors"][0]["stage"] == "ttm"
    assert set(document["results"]["shapes_color"]) >= {"group_match,none"}
    assert not any(key.endswith(",ttm") for key in document["results"]["shapes_color"])
    assert len(finished_iterations(tmp_path)) == 2
    monkeypatch.undo()
    assert evaluate(path, tasks="shapes_color")["task_status"] == {"shapes_color": "done"}


def test_a_place_that_cannot_be_written_fails_before_the_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("ttmbench.evaluator.evaluate.make_adapter", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be written to"):
        evaluate(tmp_path / "file" / "x")


def test_two_runs_cannot_write_to_one_place(tmp_path, monkeypatch):
    path, real = tmp_path / "x.json", evaluator.run_task

    def run_task(*words):
        with pytest.raises(UsageError, match="another run is writing to"):
            evaluate(path, "shapes_color")
        return real(*words)

    with monkeypatch.context() as patched:
        patched.setattr(evaluator, "run_task", run_task)
        evaluate(path, "shapes_color", ttm=False, seeds=None)
    assert not evaluate(path, "shapes_color", ttm=False, seeds=None).failed, "afterwards it is free again"


def kept_files(path: Path) -> list[Path]:
    return sorted(file for file in (path.parent / f".{path.stem}.state").rglob("*.safetensors"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """A folder with a run that was killed in its first seed."""
    folder = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        killed_after(patched, 2)
        evaluate(folder / "x.json", tasks="shapes_color")
    return folder


def test_a_damaged_checkpoint_is_named_and_never_used(tmp_path, capsys, killed, finished):
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "x.json"
    expected, _ = finished(tmp_path / "expected" / "x.json", "shapes_color")
    (training,) = kept_files(path)
    training.write_bytes(training.read_bytes()[: training.stat().st_size // 2])
    done = evaluate(path, tasks="shapes_color")
    assert "its seed starts again" in capsys.readouterr().err
    assert done["results"] == expected["results"] and done["ci"] == expected["ci"]


@pytest.fixture
def kept_seed(tmp_path) -> SeedCheckpoint:
    """A seed with two iterations behind it."""
    scores = ttmbench.types.Scores(np.random.RandomState(0).rand(3, 2, 2).astype(np.float32))
    kept = TaskCheckpoint(tmp_path / "task", "data", "run").seed("ttm", 0, scores)
    captions, flags = np.array([[0, 1], [1, 0], [0, 1]]), np.array([True, False, True])
    run = SeedRun()
    for number in (1, 2):
        step = Iteration(number, 0.5 / number, captions, flags, ~flags, (0.7, 0.6), 1e-5, scores, 1.5)
        run.steps.append(step)
        kept.keep(run, TrainingState(number, {"weight": torch.arange(4.0)}))
    return kept


@pytest.mark.parametrize("where", ["itself", "another seed", "another variant", "run", "data", "scores"])
def test_a_checkpoint_in_anothers_place_is_not_used(kept_seed, tmp_path, where):
    scores = kept_seed.read()[0].steps[0].scores
    place = {"another seed": ("ttm", 1), "another variant": ("oracle", 0)}.get(where, ("ttm", 0))
    if place != ("ttm", 0):
        (tmp_path / "task" / place[0]).mkdir(exist_ok=True)
        shutil.copy(kept_seed.path, tmp_path / "task" / place[0] / f"seed_{place[1]}.safetensors")
    start = {name: "other" if where == name else name for name in ("data", "run")}
    scores = replace(scores, groups=scores.groups + (where == "scores"))
    steps = TaskCheckpoint(tmp_path / "task", start["data"], start["run"]).seed(*place, scores).read()[0].steps
    assert len(steps) == (2 if where == "itself" else 0)


def test_a_run_that_cannot_keep_its_state_says_so_once_and_ends_well(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoints, "replace_sealed", lambda path, *_: f"{path}: No space left on device")
    assert evaluate(tmp_path / "x.json")["status"] == "done"
    assert capsys.readouterr().err.count("No space left on device; the run continues") == 2, "once a task"


def test_adapted_models_are_saved_by_a_run_that_was_stopped_too(tmp_path, monkeypatch):
    settings = {"tasks": "shapes_color", "ttm": {**SHORT, "iterations": 2}}
    evaluate(tmp_path / "a.json", save_adapted=str(tmp_path / "a"), **settings)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_after(patched, 3)
        evaluate(tmp_path / "b.json", save_adapted=str(tmp_path / "b"), **settings)
    evaluate(tmp_path / "b.json", save_adapted=str(tmp_path / "b"), **settings)
    for seed in (0, 1):
        name = f"shapes_color/seed_{seed}/model.safetensors"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


ARGUMENTS = ["--model", "tiny-clip", "--tasks", "shapes_color", "--ttm", "--device", "cpu"]
LONG = ["--limit", "8", "--ttm_args", "iterations=200,epochs=1"]  # short iterations, and more than are waited for


def start(*arguments: str, program: Sequence[str] = ("-m", "ttmbench")) -> subprocess.Popen[str]:
    streams: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return processes.start([*program, *ARGUMENTS, *arguments], text=True, env=environment, **streams)


def assert_saved(process: subprocess.Popen[str], path: Path) -> None:
    """An interrupted run has said so, and left its document and checkpoints."""
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert err.strip().endswith("interrupted; finished tasks are saved; run the same command again to resume")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["status"] == "interrupted" and document["errors"][0]["stage"] == "ttm"
    assert "Traceback" not in err and kept_files(path)


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(0.02)


def test_sigterm_ends_a_run_that_a_script_started_in_the_background(tmp_path):
    """A shell without job control ignores SIGINT for what it starts by `&`; SIGTERM is what schedulers send."""
    path = tmp_path / "x.json"
    code = "import runpy, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    code += "runpy.run_module('ttmbench', None, '__main__')"
    process = start("-o", str(path), *LONG, program=["-c", code])
    wait_for(lambda: finished_iterations(tmp_path), process)
    process.send_signal(signal.SIGINT)
    before = len(finished_iterations(tmp_path))
    wait_for(lambda: len(finished_iterations(tmp_path)) > before + 2, process)
    assert process.poll() is None, "Ctrl-C at the terminal is not for it"
    process.send_signal(signal.SIGTERM)
    assert_saved(process, path)


def test_a_killed_run_goes_on(tmp_path, capsys):
    arguments = ["--limit", "20", "--ttm_args", "iterations=4,epochs=2", "--bootstrap_iters", "20"]
    path = tmp_path / "x.json"
    process = start("-o", str(path), *arguments)
    wait_for(lambda: len(finished_iterations(tmp_path)) > 1, process)
    process.kill()
    process.communicate()
    assert json.loads(path.read_text(encoding="utf-8"))["status"] == "running"
    assert main([*ARGUMENTS, *arguments, "-o", str(path)]) == 0
    assert main([*ARGUMENTS, *arguments, "-o", str(tmp_path / "y.json")]) == 0
    one, other = (json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in ("x.json", "y.json"))
    assert one["results"] == other["results"] and one["ci"] == other["ci"]
    assert without_times(one["methods"]) == without_times(other["methods"])


FEW = {"limit": 4, "device": "cpu", "bootstrap_iters": 0}


def plain_run(path: Path, tasks: str = "shapes_color", **more):
    return ttmbench.simple_evaluate("tiny-clip", tasks, output_path=str(path), **{**FEW, **more})


@pytest.mark.parametrize(("link", "overwrite"), [("", "failed"), ("tasks/shapes_color", "always"), ("lock", "failed")])
def test_a_link_in_the_state_folder_is_not_followed(tmp_path, link, overwrite):
    """It leads to somebody else's folder, with what a run would remove of its own."""
    path, file, place = tmp_path / "x.json", tmp_path / "victim/tasks/shapes_color/thesis.txt", tmp_path / ".x.state"
    for other in (file, tmp_path / "victim/lock"):
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("years of work")
    (place / link).parent.mkdir(parents=True, exist_ok=True)
    (place / link).symlink_to(tmp_path / "victim" / link)
    with pytest.raises(UsageError, match=r"\.x\.state.* is a link, which no run makes or follows; remove it"):
        plain_run(path, overwrite=overwrite, ttm={"iterations": 1, "epochs": 1}, seeds=[0])
    assert file.read_text() == (tmp_path / "victim/lock").read_text() == "years of work"
    (place / link).unlink()
    assert plain_run(path, overwrite=overwrite)["status"] == "done"


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
    first = plain_run(path, task)
    write("aabbbb")
    second = plain_run(path, task)
    assert "the ids or tags of task mine are not those of" in capsys.readouterr().err
    assert first["task_hashes"] == second["task_hashes"] and first["results"] == second["results"]
    assert first["breakdowns"] != second["breakdowns"]
    assert plain_run(path, task)["breakdowns"] == second["breakdowns"]
    assert "every task is done" in capsys.readouterr().err


def test_a_listener_cannot_change_the_run(tmp_path):
    class Listener:
        @hookimpl
        def ttmbench_run_started(self, config):
            config["limit"] = 999
            config["tasks"].clear()

    path = tmp_path / "x.json"
    document = plain_run(path, plugins=[("listener", Listener())])
    assert document["config"]["limit"] == 4 and document["config"]["tasks"] == ["shapes_color"]


def test_a_bad_row_of_an_earlier_document_is_named(tmp_path):
    path = tmp_path / "x.json"
    first = plain_run(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    document["results"]["shapes_color"]["group_match,none"] = "abc"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError, match=r"is not a complete results document .*group_match,none"):
        plain_run(path)
    assert json.loads(path.read_text(encoding="utf-8")) == document
    assert plain_run(path, overwrite="always")["results"] == first["results"]
