"""Commands that read results at an address and write there: fsspec's in-memory back end, and ``file://``."""

from __future__ import annotations

import json
import sys

import fsspec
import pytest

import ttmbench
from ttmbench._util.remote import RemoteFolder
from ttmbench.cli import main
from ttmbench.errors import UsageError

RUN = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "6", "--bootstrap_iters", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def place() -> str:
    """An address with two runs, their samples and scores."""
    for model in ("tiny-clip", "tiny-clip-seed1"):
        words = ["--model", model, *RUN[2:], "--log_samples", "--save_scores", "-o", "memory://read/results"]
        assert main(["run", *words]) == 0
    return "memory://read/results"


def stored(beginning: str) -> dict[str, str]:
    files = fsspec.filesystem("memory").store
    return {
        name: file.getvalue().decode("utf-8", "replace") for name, file in files.items() if name.startswith(beginning)
    }


def documents(place: str) -> list[str]:
    return [f"memory:/{name}" for name in stored("/read/results/tiny") if name.endswith(".json")]


def test_folders_are_read_and_what_is_made_lies_beside_them(place, capsys, tmp_path):
    assert main(["leaderboard", place]) == 0
    out = capsys.readouterr().out
    assert f"{place}/leaderboard.json" in out and "tiny-clip-seed1" in out
    board = json.loads(stored("/read/results/leaderboard.json")["/read/results/leaderboard.json"])
    assert {row["model"] for row in board["rows"]} == {"tiny-clip", "tiny-clip-seed1"}
    assert main(["report", place, "--images", "none"]) == 0
    page = stored("/read/results/report.html")["/read/results/report.html"]
    assert "tiny-clip-seed1" in page and f"{place}/report.html" in capsys.readouterr().out
    assert main(["export", place, "--to", "csv", "-o", str(tmp_path / "x.csv")]) == 0
    assert main(["export", place, "--to", "csv", "-o", "memory://read/made/x:1.csv"]) == 0
    made = stored("/read/made/x")["/read/made/x:1.csv"]
    assert made == (tmp_path / "x.csv").read_text() and made.count("tiny-clip-seed1,") == 5
    everything = stored("/read")
    assert not [name for name, text in everything.items() if "/ttmbench-" in text]


def test_documents_are_compared_with_their_samples(place, capsys):
    assert main(["compare", *documents(place), "-o", "memory://read/made/compared.json"]) == 0
    (found,) = json.loads(stored("/read/made/compared")["/read/made/compared.json"])["comparisons"]
    assert [found["baseline"], found["other"]] == documents(place) and found["rows"]
    rows = ttmbench.compare(*documents(place), bootstrap_iters=1000)
    assert [row["difference"] for row in rows] == [row["difference"] for row in found["rows"]]


def test_python_reads_them_too(place):
    found = ttmbench.read_results(place)
    assert [one.model_name for one in found] == ["tiny-clip", "tiny-clip-seed1"]
    assert len(found[0].group_values["shapes_color"]["none"]["group_match"]) == 6
    (scores,) = [name for name in stored("/read/results/tiny-clip/") if name.endswith(".safetensors")]
    again = ttmbench.score(f"memory:/{scores}", bootstrap_iters=0).results["scores"]
    assert again["group_match,none"] == found[0].results["shapes_color"]["group_match,none"]


def test_scores_are_scored_and_a_run_s_document_is_moved_aside(place, capsys):
    (scores,) = [f"memory:/{name}" for name in stored("/read/results/tiny-clip/") if name.endswith(".safetensors")]
    memory = fsspec.filesystem("memory")
    whole = next(name for name in stored("/read/results/tiny-clip/") if name.endswith(".json"))
    memory.pipe_file("/read/one/x.json", memory.cat_file(whole))
    assert main(["score", scores, "-o", "memory://read/one/x.json", "--assert", "scores.group_match,none>=2"]) == 3
    assert "memory://read/one/x.json" in capsys.readouterr().out
    now, aside = stored("/read/one/x.json"), stored("/read/one/x.2")
    assert json.loads(now["/read/one/x.json"])["run_key"] is None and len(aside) == 1


@pytest.mark.parametrize("command", ["report {}", "leaderboard {}", "compare {}", "export {} --to csv", "score {}"])
def test_what_is_not_there_is_one_line(command, capsys):
    assert main(command.format("memory://read/nothing").split()) == 2
    err = capsys.readouterr().err
    assert (
        "memory://read/nothing: there is no such file, and no folder with results in it" in err and err.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("s3://bucket/x", "s3://bucket/x: s3:// needs the package s3fs, which is not installed: pip install s3fs"),
        (
            "gs://me:hidden-word@b/x",
            "gs://b/x: gs:// needs the package gcsfs, which is not installed: pip install gcsfs",
        ),
        (
            "nothing://bucket/x",
            "nothing://bucket/x cannot be reached: nothing:// is not a kind of address that fsspec knows",
        ),
        ("memory://bucket/*", "memory://bucket/* is a pattern or a chain of addresses; give the address of one place"),
        ("simplecache::memory://b", "is a pattern or a chain of addresses; give the address of one place"),
    ],
)
@pytest.mark.parametrize("command", ["leaderboard {}", "run --model tiny-clip --tasks shapes_color -o {}"])
def test_what_cannot_be_reached_is_one_line_that_says_why(command, address, line, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for package in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(command.format(address).split()) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1 and "hidden-word" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        "run --model tiny-clip --tasks shapes_color --limit 6 -o {}",
        "export {place} --to csv -o {}",
        "score {place} -o {}",
        "report {}",
        "compare {place} {place} -o {}",
    ],
)
@pytest.mark.parametrize("address", ["gs://x.json", "memory://x.json", "memory:///x.json", "s3://", "s3:/x.json"])
def test_an_address_without_a_bucket_is_one_line_and_no_local_folder(
    command, address, place, capsys, monkeypatch, tmp_path
):
    """``gs://x.json`` was a file in the folder ``gs:`` here, and the command ended well."""
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "put_file", None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(command.format(address, place=place).split()) == 2
    err = capsys.readouterr().err
    assert f"write {address.partition(':')[0]}://BUCKET/PATH" in err and err.count("\n") == 1
    assert not list((tmp_path / "here").iterdir())


def test_a_folder_with_a_colon_in_its_name_is_still_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "-o", "./gs:/x.json"]) == 0
    assert (tmp_path / "gs:" / "x.json").is_file()


def test_what_is_fetched_is_bounded(place, monkeypatch, capsys):
    for limits, line in (
        ("text_bytes=500", "is too large: more than 500 bytes"),
        ("remote_bytes=500", "bytes of JSON; TTMBENCH_LIMITS=remote_bytes=N raises the limit"),
        ("remote_files=1", "and at most 1 are looked at"),
    ):
        monkeypatch.setenv("TTMBENCH_LIMITS", limits)
        assert main(["leaderboard", place]) == 4
        err = capsys.readouterr().err
        assert line in err and err.count("\n") == 1


def test_names_that_would_lie_elsewhere_are_no_files(monkeypatch):
    folder = RemoteFolder("memory://read/names", "place")
    names = [
        "a.json",
        "b/c.json",
        "../d.json",
        "/e.json",
        "b/../../f.json",
        ".g.json",
        "h/.i/j.json",
        "k\\l.json",
        "C:m",
    ]
    found = {f"/read/names/{name}": {"size": 1} for name in names}
    monkeypatch.setattr(type(folder._fs), "find", lambda self, path, detail: found)
    assert list(folder.files()) == ["a.json", "b/c.json"]


def test_a_document_names_no_file_elsewhere(tmp_path):
    document = {"schema_version": "1.0", "results": {}, "artifacts": {"../x.jsonl": {"sha256": "0"}, "y": "z"}}
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/read/evil/deep/x.json", json.dumps(document).encode())
    memory.pipe_file("/read/evil/x.jsonl", b"{}")
    with pytest.raises(UsageError):
        ttmbench.read_results("memory://read/evil/none")
    from ttmbench.results.remote import fetch_results

    here = fetch_results("memory://read/evil/deep/x.json", "path")
    assert [one.name for one in here.parent.iterdir()] == ["x.json"] and not (here.parent.parent / "x.jsonl").exists()
