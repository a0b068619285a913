"""Runs whose results go to an address: what is there at every moment, and what is left when something breaks."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from support import processes
from support.addresses import TroubledFileSystem as There

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.evaluator import run as run_module
from ttmbench.evaluator.record import RunRecord
from ttmbench.evaluator.remote_output import UnsentError

BASE = {"model": "tiny-clip", "limit": 4, "bootstrap_iters": 0, "device": "cpu", "log_samples": True}
TASKS = "shapes_color,shapes_spatial,shapes_place"
PLACE = "troubled://bucket/results"
COMMAND = ["--model", "tiny-clip", "--tasks", TASKS, "--limit", "4", "--bootstrap_iters", "0", "--log_samples"]
COMMAND += ["--device", "cpu"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """The folder of temporary folders."""
    There.reset()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The same run with a folder, and the names of its files without their time."""
    folder = tmp_path_factory.mktemp("plain")
    found = ttmbench.simple_evaluate(tasks=TASKS, output_path=str(folder), **BASE)
    return found, {path.name.rpartition("_")[0] for path in folder.rglob("*") if path.is_file()}


def evaluate(place: str = PLACE, tasks: str = TASKS, **more):
    return ttmbench.simple_evaluate(tasks=tasks, output_path=place, **{**BASE, **more})


def sole() -> tuple[str, dict]:
    (found,) = There.documents().items()
    return found


def stopping_at(monkeypatch, task: str, stop: type[BaseException] = KeyboardInterrupt) -> list[str]:
    """Lets a run stop as it comes to a task; returns the tasks that are run, also later."""
    began: list[str] = []
    whole = run_module.run_task

    def run_task(context, found, *more):
        began.append(found.spec.task)
        if found.spec.task == task:
            raise stop
        return whole(context, found, *more)

    monkeypatch.setattr(run_module, "run_task", run_task)
    return began


def test_everything_is_there_and_nothing_stays_here(plain, here):
    results, names = plain
    There.delay = 0.005
    found = evaluate(save_scores=False)
    path, document = sole()
    assert found.address == f"troubled:/{path}" and found.path is None
    assert found.results == results.results == document["results"] and document["status"] == "done"
    assert {one.rpartition("/")[2].rpartition("_")[0] for one in There.store} == names
    assert found.group_values.keys() == results.group_values.keys()
    assert not There.wrong and not [one for one in There.store if one.endswith(".tmp")] and not list(here.iterdir())
    assert document["config"]["output_path"] == PLACE


def test_the_document_is_there_after_every_task_and_last(monkeypatch):
    states, whole = [], There.mv

    def mv(self, path1, path2, *more, **options):
        whole(self, path1, path2, *more, **options)
        if path2.endswith(".json"):
            states.append(list(There.documents()[path2]["results"]))

    monkeypatch.setattr(There, "mv", mv)
    monkeypatch.setattr(RunRecord, "_saving", property(lambda self: 0.0, lambda self, value: None), raising=False)
    evaluate()
    assert [len(one) for one in states][-4:] == [1, 2, 3, 3] and not There.wrong


@pytest.mark.parametrize("number", [3, 5, 7])
def test_a_write_that_fails_is_made_up_for(number, plain, capsys):
    There.fails = staticmethod(lambda count, name: count == number)
    assert main([*COMMAND, "-o", PLACE]) == 0
    err = capsys.readouterr().err
    assert "the line is dead" in err and "what is done is saved in" in err and "abcdef123456" not in err
    _, document = sole()
    assert document["results"] == plain[0].results and not There.wrong
    assert len([one for one in There.store if one.endswith(".jsonl")]) == 3


def test_a_place_that_stays_away_loses_nothing(plain, here):
    There.fails = staticmethod(lambda count, name: count > 2)
    with pytest.raises(UnsentError, match="copy them to the address") as caught:
        evaluate()
    (folder,) = here.iterdir()
    assert caught.value.results.results == plain[0].results and str(folder) in str(caught.value)
    (document,) = folder.rglob("results_*.json")
    assert json.loads(document.read_text())["results"] == plain[0].results


def test_the_command_shows_what_it_could_not_send(capsys):
    There.fails = staticmethod(lambda count, name: count > 2)
    assert main([*COMMAND, "-o", PLACE]) == 1
    captured = capsys.readouterr()
    assert "copy them to the address" in captured.err and "shapes_place" in captured.out


def test_a_place_that_cannot_be_written_to_is_known_before_any_task(monkeypatch):
    There.fails = staticmethod(lambda count, name: True)
    began = stopping_at(monkeypatch, "none")
    with pytest.raises(
        UsageError, match=r"--output_path: troubled://bucket/results/tiny-clip/results_.* cannot be writ"
    ):
        evaluate()
    assert not began and not There.store


@pytest.mark.parametrize("place", [PLACE, "troubled://bucket/run.json"])
def test_the_same_command_goes_on_from_the_place(place, here, plain, monkeypatch, capsys):
    """On any machine: nothing stays on this one."""
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patched:
        stopping_at(patched, "shapes_spatial")
        evaluate(place)
    assert sole()[1]["status"] == "interrupted" and list(sole()[1]["results"]) == ["shapes_color"]
    assert not list(here.iterdir())
    capsys.readouterr()
    began = stopping_at(monkeypatch, "none")
    assert evaluate(place).results == plain[0].results
    assert began == ["shapes_spatial", "shapes_place"] and not There.wrong
    assert f"resuming {place}" in capsys.readouterr().err and sole()[1]["status"] == "done"


def test_a_sample_that_was_changed_there_is_made_again(plain, monkeypatch, capsys):
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patched:
        stopping_at(patched, "shapes_place")
        evaluate()
    (sample,) = [one for one in There.store if "samples_shapes_color" in one]
    There().pipe_file(sample, b"{}\n")
    began = stopping_at(monkeypatch, "none")
    assert evaluate().results == plain[0].results and began == ["shapes_color", "shapes_place"]
    There().check()
    assert not There.wrong


def test_another_run_s_document_is_moved_aside_with_its_files(capsys):
    place = "troubled://bucket/run.json"
    first = evaluate(place, "shapes_color")
    evaluate(place, "shapes_color", seed=1)
    documents = There.documents()
    (aside,) = [one for one in documents if one != "/bucket/run.json"]
    assert documents[aside]["results"] == first.results and documents[aside]["config"]["seed"] == 0
    assert documents["/bucket/run.json"]["config"]["seed"] == 1 and not There.wrong
    assert len([one for one in There.store if one.endswith(".jsonl")]) == 2
    assert "troubled://bucket/run.json held another run" in capsys.readouterr().err


def test_overwrite_means_what_it_means_for_a_folder(monkeypatch):
    evaluate("troubled://bucket/run.json", "shapes_color")
    with pytest.raises(UsageError, match=r"troubled|holds results already"):
        evaluate("troubled://bucket/run.json", "shapes_color", overwrite="never")
    began = stopping_at(monkeypatch, "none")
    evaluate("troubled://bucket/run.json", "shapes_color", overwrite="always")
    assert began == ["shapes_color"] and list(There.documents()) == ["/bucket/run.json"]


def test_who_asks_is_told_nobody(capsys):
    place = "troubled://me:my-pass-word@bucket/results?token=abcdef123456"
    There.fails = staticmethod(lambda count, name: count == 4)
    assert main([*COMMAND, "-o", place]) == 0
    captured = capsys.readouterr()
    written = [file.getvalue().decode() for file in There.store.values()]
    for text in (captured.out, captured.err, *written):
        assert "my-pass-word" not in text and "abcdef123456" not in text, text[:300]


@pytest.mark.slow
def test_a_run_killed_between_tasks_goes_on_from_the_place_alone(tmp_path):
    """By the ordinary command, twice, with fsspec's own local back end and no folder in common but the place."""
    place = f"local://{tmp_path}/there"
    words = ["-m", "ttmbench", "--model", "tiny-clip", "--tasks", "shapes_color,shapes_spatial", "--limit", "40"]
    words += ["--bootstrap_iters", "0", "--device", "cpu", "--log_samples", "-o", place, "--ttm"]
    words += ["--ttm_args", "iterations=3,epochs=2"]

    def begin(err: int):
        return processes.start(words, stdout=subprocess.DEVNULL, stderr=err, text=True)

    first, until = begin(subprocess.DEVNULL), time.monotonic() + 60
    while not any('"shapes_color": "done"' in one.read_text() for one in (tmp_path / "there").rglob("results_*.json")):
        assert time.monotonic() < until and first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = begin(subprocess.PIPE)
    _, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert "shapes_color done, 1 left" in err
    (document,) = [json.loads(one.read_text()) for one in (tmp_path / "there").rglob("results_*.json")]
    assert document["status"] == "done" and set(document["results"]) == {"shapes_color", "shapes_spatial"}
    assert not list((tmp_path / "there").rglob(".*"))
