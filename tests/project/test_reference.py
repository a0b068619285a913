"""The reference results: whole, made by the commands that are stated, and what pages and figures show of them."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from pathlib import Path

import jsonschema
import pytest
from support.checkout import load_script
from support.documents import schema

from ttmbench.cli import main

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results" / "reference"
DOCUMENTS = sorted(FOLDER.glob("*.json"))
BUILTIN = ["shapes_color", "shapes_color_global", "shapes_place", "shapes_replace", "shapes_spatial"]


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_reference_document_is_whole_and_claims_no_file_that_is_not_there(path):
    document = read(path)
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    assert document["status"] == "done" and not document["errors"]
    for counts in document["n-samples"].values():
        assert counts["original"] == counts["effective"] == 200
    beside = {one.name for one in FOLDER.glob(f"{path.stem}_iterations_*.jsonl")}
    assert set(document["artifacts"]) == beside and beside
    for name, about in document["artifacts"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == about["sha256"], name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_reference_document_was_made_by_the_command_that_its_page_states(path):
    document = read(path)
    assert document["command"] in (ROOT / "results" / "README.md").read_text(encoding="utf-8").splitlines()
    words = shlex.split(document["command"])
    assert words[-2:] == ["--output_path", f"results/reference/{path.name}"]
    assert document["config"]["seeds"] == [0, 1, 2, 3]
    assert list(document["results"]) == (["shapes_color"] if path.name == "first.json" else BUILTIN)


def test_pages_and_tables_show_the_reference(tmp_path):
    script = load_script("reference")
    assert all(path.read_text(encoding="utf-8") == text for path, text in script.texts(ROOT).items())
    for name in ("README.md", "docs/builtin.md", "results/reference", "ttmbench/reproduce/published"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    document = read(tmp_path / "results" / "reference" / "builtin.json")
    document["results"]["shapes_place"]["group_match,ttm"] = 0.5
    (tmp_path / "results" / "reference" / "builtin.json").write_text(json.dumps(document), encoding="utf-8")
    stale = {path.name for path, text in script.texts(tmp_path).items() if path.read_text(encoding="utf-8") != text}
    assert stale == {"README.md", "builtin.md", "builtin.csv"}


def test_the_table_builtin_is_reproduced_by_its_runs(capsys):
    assert main(["reproduce", "builtin", "--runs", str(FOLDER)]) == 0
    out = capsys.readouterr().out
    rows = len((ROOT / "ttmbench/reproduce/published/builtin.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert f"{rows} numbers: agrees {rows}" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task", "seeds"), [("first.json", "shapes_color", [0, 1, 2, 3]), ("builtin.json", "shapes_replace", [0])]
)
def test_a_row_comes_out_again(name, task, seeds, tmp_path, monkeypatch):
    """The README's run, and another's first seed: equal before training, and in agreement after it, on every CPU.

    Training amplifies rounding, which depends on the CPU, so trained numbers agree as two repetitions would.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = f"--model tiny-clip --tasks {task} --methods ttm,overfit --seeds {','.join(map(str, seeds))} --device cpu"
    assert main([*command.split(), "--use_cache", "off", "--output_path", str(tmp_path / "again.json")]) == 0
    again, reference = read(tmp_path / "again.json"), read(FOLDER / name)
    assert again["task_hashes"][task] == reference["task_hashes"][task]
    found, known = again["results"][task], reference["results"][task]
    raw = {key: value for key, value in known.items() if key.endswith(",none")}
    assert raw and {key: found[key] for key in raw} == raw
    first = [
        [
            (row["seed"], row["selected"], row["candidates"])
            for row in one["methods"][task]["ttm"]["iterations"]
            if row["iteration"] == 1
        ]
        for one in (again, reference)
    ]
    assert first[0] == [row for row in first[1] if row[0] in seeds], "selected by raw scores"
    assert main(["reproduce", "builtin", "--runs", str(tmp_path), "--allow_missing"]) == 0
