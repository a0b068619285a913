"""Results at addresses: written by runs, sent again after failures, read by commands."""

from __future__ import annotations

import json
import shutil
import sys

import fsspec
import pytest
from support.addresses import TroubledFileSystem as There

import ttmbench
from ttmbench._util.remote import RemoteFolder
from ttmbench.cli import main
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator import evaluate as run_module

TASKS = "shapes_color,shapes_spatial"
RUN = ["--tasks", TASKS, "--limit", "4", "--bootstrap_iters", "0", "--device", "cpu", "--log_samples", "--save_scores"]
PLACE = "troubled://bucket/results"
BASE = {"tasks": TASKS, "limit": 4, "bootstrap_iters": 0, "device": "cpu", "log_samples": True}


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    There.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ttmbench" / "unsent"


@pytest.fixture(scope="module")
def place() -> str:
    """An address with two runs, their samples and scores."""
    for model in ("tiny-clip", "tiny-clip-seed1"):
        assert main(["run", "--model", model, *RUN, "-o", "memory://read/results"]) == 0
    return "memory://read/results"


def documents() -> list[str]:
    found = fsspec.filesystem("memory").find("/read/results")
    return [f"memory:/{name}" for name in found if name.endswith(".json")]


def evaluate(address: str = PLACE, **more):
    return ttmbench.simple_evaluate("tiny-clip", output_path=address, **{**BASE, **more})


def test_a_run_sends_its_files_after_each_task(cache_home):
    found = evaluate()
    (path, document), *others = There.documents().items()
    assert not others and document["status"] == "done" and found.address.endswith(path.removeprefix("/bucket"))
    assert found.results.keys() == document["results"].keys()
    assert not There.wrong and len([name for name in There.writes if name.endswith(".json")]) > 2
    assert not list(cache_home.glob("*"))


@pytest.mark.parametrize("address", [PLACE, "troubled://bucket/run.json"])
def test_the_same_command_resumes_on_another_machine(address, cache_home, monkeypatch):
    began, whole = [], run_module.run_task

    def stopped(run, task, *more):
        began.append(task.spec.task)
        if len(began) == 2:
            raise KeyboardInterrupt
        return whole(run, task, *more)

    monkeypatch.setattr(run_module, "run_task", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(address)
    shutil.rmtree(cache_home)
    assert set(evaluate(address).results) == set(TASKS.split(","))
    assert began == ["shapes_color", "shapes_spatial", "shapes_spatial"]
    assert [document["status"] for document in There.documents().values()] == ["done"]


def test_the_same_command_sends_what_is_missing(cache_home, monkeypatch):
    There.fails = staticmethod(lambda number, name: number > 2)
    with pytest.raises(TtmbenchError) as failed:
        evaluate()
    assert failed.value.exit_code == 1 and set(failed.value.results.results) == set(TASKS.split(","))
    There.fails = staticmethod(lambda number, name: False)
    monkeypatch.setattr(run_module, "run_task", None)
    evaluate()
    (document,) = There.documents().values()
    There().check()
    assert document["status"] == "done" and not There.wrong and not list(cache_home.glob("*"))


def test_an_address_that_cannot_be_written_is_a_usage_error(monkeypatch):
    There.fails = staticmethod(lambda number, name: True)
    monkeypatch.setattr(run_module, "run_task", None)
    with pytest.raises(UsageError):
        evaluate()


def test_commands_read_addresses(place, capsys, tmp_path):
    assert main(["leaderboard", place, "-o", str(tmp_path / "board")]) == 0
    board = json.loads((tmp_path / "board" / "leaderboard.json").read_text())
    assert {row["model"] for row in board["rows"]} == {"tiny-clip", "tiny-clip-seed1"}
    assert main(["report", place, "--images", "none", "-o", str(tmp_path / "page.html")]) == 0
    assert "tiny-clip-seed1" in (tmp_path / "page.html").read_text()
    assert main(["compare", *documents(), "-o", str(tmp_path / "compared.json")]) == 0
    (found,) = json.loads((tmp_path / "compared.json").read_text())["comparisons"]
    assert found["rows"]
    assert len(ttmbench.read_results(place)) == 2 and ttmbench.compare(*documents(), bootstrap_iters=100)


@pytest.mark.parametrize("command", ["report", "leaderboard"])
def test_pages_of_an_address_need_a_local_place(place, command, capsys):
    assert main([command, place]) == 2 and "--output_path" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["compare", "memory://none", "memory://none"], ["validate", "memory://none"]])
def test_nothing_at_an_address_is_a_usage_error(words, capsys):
    assert main(words) == 2 and "memory://none" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address",
    [
        *("s3:///", "s3:/x.json", "http://host/x", "nope://bucket/x", "memory://a/*.json", "zip://x::s3://y"),
        "sftp://me:secret-word@host/results",
    ],
)
def test_wrong_addresses_are_usage_errors(address, capsys):
    assert main(["run", "--model", "tiny-clip", *RUN, "-o", address]) == 2
    assert "secret-word" not in capsys.readouterr().err.replace(address, "")


def test_the_package_of_an_address_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert main(["compare", "s3://bucket/x", "s3://bucket/y"]) == 2 and "s3fs" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["model=x,base_url=http://me:pass@host/v1", "s3://me:pass@bucket"])
def test_a_password_in_an_argument_is_refused(word, capsys, tmp_path):
    assert (
        main(["--model", "openai", "--model_args", word, "--tasks", "shapes_color", "-o", str(tmp_path / "out")]) == 2
    )
    said = capsys.readouterr().err
    assert "password" in said and "me:pass" not in said and not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="password"):
        ttmbench.simple_evaluate("openai", "shapes_color", model_args={"base_url": f"http://{word[-13:]}"})
    with pytest.raises(UsageError, match="password"):
        ttmbench.read_results("sftp://me:pass@host/results")


def test_what_is_fetched_is_bounded(place, monkeypatch):
    for bound in ("remote_files=3", "remote_bytes=100"):
        monkeypatch.setenv("TTMBENCH_LIMITS", bound)
        with pytest.raises(TtmbenchError, match=bound.partition("=")[0]):
            ttmbench.read_results(place)


def test_files_that_leave_the_folder_are_skipped(monkeypatch, tmp_path):
    remote, fetched = RemoteFolder("memory://bad/results", "x"), []
    names = ("a.json", "../b.json", "c/../../d.json", ".hidden.json", "c\\d.json", "c//d.json")
    listing = {f"/bad/results/{name}": {"size": 1} for name in names}
    monkeypatch.setattr(remote._fs, "find", lambda *more, **options: listing)
    monkeypatch.setattr(remote._fs, "exists", lambda path: True)
    monkeypatch.setattr(remote._fs, "get_file", lambda path, target: fetched.append(target))
    assert remote.get(tmp_path) and fetched == [str(tmp_path / "a.json")]
