"""A run is laid out as the leaderboard's repository takes it, with metadata; what is asked for and missing is named."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.checkout import load_script
from support.submissions import make_submission

from ttmbench.cli import main

COMMAND = "--model tiny-clip --tasks shapes_color,shapes_replace --limit 16 --save_scores --bootstrap_iters 20 -o {}"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return make_submission(tmp_path_factory.mktemp("run") / "honest", COMMAND)


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A checkout with one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a tester")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "tester@example.org")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


def submit(path: Path, repository: Path, *more: str) -> int:
    return main(["submit", str(path), "--repository", str(repository), *more])


def metadata(repository: Path) -> dict:
    (path,) = repository.rglob("*.submission.yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_what_is_laid_out_passes_validate(honest, repository, capsys):
    assert submit(honest, repository, "--contact", "@me", "--note", "one note") == 0
    said = capsys.readouterr()
    assert "ttmbench --model tiny-clip" in said.out and "git switch -c NAME" in said.out
    assert "rank nowhere" in said.err, "a part of the groups"
    folder = repository / "results" / "submissions" / "tiny-clip"
    assert {path.name for path in folder.iterdir()} == {
        *("x.json", "x.submission.yaml", "x_scores_shapes_color.safetensors", "x_scores_shapes_replace.safetensors")
    }
    stated = metadata(repository)
    assert stated.pop("sha256") and stated == {
        **{"document": "x.json", "model": "tiny-clip", "weights": "ttmbench", "trained_on": ["rendered-scenes"]},
        **{"contact": "@me", "note": "one note", "license": "CC0-1.0"},
    }
    assert main(["validate", str(repository / "results"), "--with_metadata"]) == 0
    assert submit(honest, repository) == 0, "the same again"


def test_a_branch_holds_the_files_and_nothing_else(honest, repository, capsys):
    (repository / "unfinished.txt").write_text("mine", encoding="utf-8")
    assert submit(honest, repository, "--branch", "my-run") == 0
    assert git(repository, "branch", "--show-current").strip() == "my-run"
    assert git(repository, "show", "--stat", "--format=%s", "HEAD").startswith("Submission: tiny-clip on shapes_color")
    assert len(git(repository, "diff", "--name-only", "main", "my-run").split()) == 4
    assert "unfinished.txt" in git(repository, "status", "--short")
    assert submit(honest, repository, "--branch", "my-run") == 2
    assert "git switch failed" in capsys.readouterr().err


def test_a_pull_request_is_checked_by_what_it_adds(honest, tmp_path, capsys):
    check_submissions = load_script("check_submissions")
    here, proposed = tmp_path / "here", tmp_path / "proposed"
    for folder in (here, proposed):
        (folder / "results" / "submissions").mkdir(parents=True)
    assert check_submissions.check(proposed, here) == 0 and "no document is new" in capsys.readouterr().out
    assert submit(honest, proposed) == 0
    capsys.readouterr()
    assert check_submissions.check(proposed, here) == 0
    assert "1 documents are new or changed" in capsys.readouterr().out
    (stated,) = proposed.rglob("*.submission.yaml")
    shutil.copytree(proposed, here, dirs_exist_ok=True)
    stated.unlink()
    assert check_submissions.check(proposed, here) == 0, "what is there already is not asked for it"
    next(proposed.rglob("x.json")).write_text("{}", encoding="utf-8")
    assert check_submissions.check(proposed, here) == 4


def changed(honest: Path, folder: Path, **changes) -> Path:
    shutil.copytree(honest, folder)
    path = folder / "x.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document.update(changes)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_what_validate_refuses_is_not_copied(honest, repository, tmp_path, capsys):
    document = json.loads((honest / "x.json").read_text(encoding="utf-8"))
    document["results"]["shapes_color"]["group_match,none"] = 1.0
    path = changed(honest, tmp_path / "forged", results=document["results"])
    assert submit(path, repository) == 3
    said = capsys.readouterr()
    assert "results.shapes_color" in said.out and "`ttmbench validate` has to pass first" in said.err
    assert not (repository / "results").exists()


def test_what_is_asked_for_is_named(honest, repository, tmp_path, capsys, monkeypatch):
    assert submit(honest, repository, "--weights", "my folder") == 2
    assert "'weights': must be an address" in capsys.readouterr().err
    monkeypatch.setattr("ttmbench.cli.validate.is_shipped", lambda registry, document: False)
    assert submit(honest, repository) == 2
    assert "say where others get them: --weights" in capsys.readouterr().err
    assert submit(tmp_path, repository) == 4 and "has no results document" in capsys.readouterr().err
    monkeypatch.setattr("ttmbench.cli.submit.MOST_BYTES", 100)
    address = ["--weights", "https://example.org/w"]
    assert submit(honest, repository, *address) == 2 and "give --files URL" in capsys.readouterr().err
    assert submit(honest, repository, *address, "--files", "https://example.org/f") == 0
    stated = metadata(repository)
    assert stated["weights"] == "https://example.org/w" and stated["files"] == "https://example.org/f"
    assert stated["left_out"] == [f"x_scores_shapes_{task}.safetensors" for task in ("color", "replace")]
    assert not list(repository.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"weights": "here"}, "'weights': must be an address"),
        ({"license": "mine"}, "'license'"),
        ({"sha256": "0" * 64}, "sha256: is 000"),
        ({"model": "other"}, "model: is other"),
        ({"contact": "a\u202eb"}, "change the direction of text"),
        ({"left_out": ["../x"]}, "../x is not a file of the document"),
        ({"left_out": ["x_scores_shapes_color.safetensors"]}, "'files' must say where they are"),
        ({"more": 1}, "'more'"),
        (None, "there is no such file; `ttmbench submit` writes it"),
    ],
)
def test_metadata_that_are_not_the_documents_are_refused(honest, tmp_path, changes, expected, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(honest, folder)
    assert submit(folder, tmp_path / "repository") == 0
    (path,) = (tmp_path / "repository").rglob("*.submission.yaml")
    if changes is None:
        path.unlink()
    else:
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    capsys.readouterr()
    assert main(["validate", str(tmp_path / "repository" / "results"), "--with_metadata", "--schema_only"]) == 3
    assert expected in capsys.readouterr().out
