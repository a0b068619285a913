"""The reference results: whole, made by the commands that are stated, and what pages and figures show of them."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import sys
from pathlib import Path

import jsonschema
import pytest

from ttmbench.cli import main
from ttmbench.results.files import schema

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results" / "reference"
DOCUMENTS = sorted(path for path in FOLDER.glob("*.json") if not path.name.startswith("study_"))
BUILTIN = ["shapes_color", "shapes_color_global", "shapes_place", "shapes_replace", "shapes_spatial"]


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "docs"))
    before = set(sys.modules)
    import reference

    yield reference
    for name in {"reference", "reference_figures", "builtin_study", "builtin_table"} - before:
        sys.modules.pop(name, None)


@pytest.fixture
def copied(scripts, monkeypatch, tmp_path):
    """The script on copies of everything that it reads and writes."""
    for folder in ("results/reference", "docs/images", "ttmbench/reproduce/published"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for page in ("README.md", "docs/builtin.md", "docs/methods-compared.md"):
        shutil.copy(ROOT / page, tmp_path / page)
    for module, names in (
        (scripts, ("ROOT", "FOLDER", "FIRST", "MAIN", "IMAGES", "RECORD")),
        (scripts.builtin_study, ("FOLDER",)),
        (scripts.methods_study, ("FOLDER",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, tmp_path / getattr(module, name).relative_to(ROOT))
    return scripts


# The documents


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_reference_document_is_whole_and_claims_no_file_that_is_not_there(path):
    document = read(path)
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    assert document["status"] == "done" and not document["errors"]
    for counts in document["n-samples"].values():
        assert counts["original"] == counts["effective"] == 200
    beside = {one.name for one in FOLDER.glob(f"{path.stem}_ttm_*.jsonl")}
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


def test_the_run_that_the_readme_shows_is_its_own_command():
    line = next(one for one in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "&& ttmbench " in one)
    typed, stored = line.partition("&& ttmbench ")[2], read(FOLDER / "first.json")["command"].partition(" ")[2]
    assert typed.partition(" --output_path")[0] == stored.partition(" --output_path")[0] != ""


@pytest.mark.parametrize(("model", "name"), [("tiny-clip", "builtin.json"), ("tiny-clip-seed1", "builtin_seed1.json")])
def test_the_study_and_the_reference_agree_where_they_meet(model, name):
    """The study's first data set is the task, and its TTM seed the reference's first."""
    document, rows = read(FOLDER / name), read(FOLDER / f"study_{model}.json")
    met = [row for row in rows if row["data_seed"] == 0]
    assert sorted(row["task"] for row in met) == BUILTIN
    for row in met:
        numbers, task = document["results"][row["task"]], row["task"]
        match = "global_assignment_accuracy" if task.endswith("_global") else "group_match"
        last = [one for one in document["ttm"][task]["iterations"] if one["seed"] == 0][-1]["metrics"]
        found = (numbers["group_score,none"], numbers[f"{match},none"], last[match], last["group_score"])
        assert found == (row["raw"], row["simple_match"], row["ttm"], row["group_score_ttm"]), task


def test_what_adaptation_does_elsewhere_agrees_with_the_reference_on_its_own_task():
    document, found = read(FOLDER / "builtin.json"), read(FOLDER / "study_transfer.json")
    assert found["tasks"] == BUILTIN and found["seeds"] == [0, 1, 2, 3]
    for at, task in enumerate(BUILTIN):
        metric, cell = found["data"]["metrics"][task], found["data"]["cells"][at][at]
        numbers = document["results"][task]
        assert found["data"]["raw"][task] == numbers[f"{metric},none"]
        assert cell["value"] == numbers[f"{metric},ttm"] and cell["seed_std"] == numbers[f"{metric}_seed_std,ttm"]
        assert cell["difference"] == pytest.approx(cell["value"] - found["data"]["raw"][task])


def test_what_the_page_of_methods_concludes_follows_from_the_comparisons(scripts):
    """The sentences of docs/methods-compared.md, checked against the documents."""
    study = scripts.methods_study
    match = {
        cell: {row["method"]: row for row in document["data"]["rows"] if row["metric"] == "group_match"}
        for cell, document in study.documents().items()
    }
    sure = {cell: {name for name, row in rows.items() if row.get("p_holm", 1) < 0.05} for cell, rows in match.items()}
    for (model, task), rows in match.items():
        gains = {name: 100 * row["gain"] for name, row in rows.items() if name != "none"}
        few = {"tent", "cliptta", "tpt", "c_tpt", "tps", "rlcf", "vte", "mta", "zero", "dn", "nnn", "dis"}
        assert not few & sure[model, task]
        if task in study.PAIRED:
            assert 9.5 < gains["ttm"] < 15 and 2.5 < gains["selftrain"] < 13 and "ttm" in sure[model, task]
            assert 11 <= gains["oracle"] <= 26
            unchanged = ("dn", "nnn", "dis", "sinkhorn")
            assert all(gains[name] == pytest.approx(0, abs=1e-9) for name in unchanged)
            assert abs(gains["dual_softmax"]) < 0.6, "at the published temperature"
        else:
            assert gains["ttm"] == gains["selftrain"], "with one image a matching is an argmax"
        if task == "shapes_replace":
            assert abs(gains["placebo"] - gains["ttm"]) < 3 and gains["shuffle"] > 4
        if task == "shapes_spatial":
            assert -35.5 < min(gains["placebo"], gains["shuffle"]) and max(gains["placebo"], gains["shuffle"]) < -28.5


def test_nothing_else_lies_in_the_folder():
    known = {name for path in DOCUMENTS for name in (path.name, *read(path)["artifacts"])}
    studies = {"study_tiny-clip.json", "study_tiny-clip-seed1.json", "study_transfer.json"}
    tasks = [task for task in BUILTIN if not task.endswith("_global")]
    studies |= {f"study_methods_{model}_{task}.json" for model in ("tiny-clip", "tiny-clip-seed1") for task in tasks}
    assert {path.name for path in FOLDER.iterdir()} - known == studies


# What is shown of them


def test_pages_tables_and_figures_show_the_reference(scripts):
    assert scripts.problems() == []


def test_a_number_typed_into_a_page_is_found(copied):
    shown = f"{100 * read(FOLDER / 'first.json')['results']['shapes_color']['group_match,ttm']:.2f}"
    for page in ("README.md", "docs/builtin.md", "ttmbench/reproduce/published/builtin.csv"):
        path = copied.ROOT / page
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(shown, "95.38"), encoding="utf-8")
        assert [one.partition(" does not")[0] for one in copied.problems()] == [page]
        path.write_text(text, encoding="utf-8")
    assert copied.problems() == []


def test_other_reference_numbers_make_everything_stale_until_it_is_written_again(copied):
    document = read(copied.MAIN)
    document["results"]["shapes_place"]["group_match,ttm"] = 0.5
    for row in document["ttm"]["shapes_place"]["iterations"]:
        row["metrics"]["group_match"] = 0.5
    copied.MAIN.write_text(json.dumps(document), encoding="utf-8")
    moved = read(copied.FOLDER / "study_transfer.json")
    moved["data"]["cells"][0][1]["difference"] = 0.5
    (copied.FOLDER / "study_transfer.json").write_text(json.dumps(moved), encoding="utf-8")
    compared = copied.methods_study.study_file("tiny-clip", "shapes_color")
    changed = read(compared)
    changed["data"]["rows"][-1]["gain"] = 0.5
    compared.write_text(json.dumps(changed), encoding="utf-8")
    stale = " ".join(copied.problems())
    screenshots = {name for name in read(copied.RECORD) if name.startswith(("report", "leaderboard"))}
    for name in (
        "README.md",
        "docs/builtin.md",
        "docs/methods-compared.md",
        "builtin.csv",
        *copied.charts(),
        *screenshots,
    ):
        assert name in stale, name
    copied.write()
    place = document["results"]["shapes_place"]
    fitted = f"{100 * place['group_score,simple_match']:.2f} ± {100 * place['group_score_seed_std,simple_match']:.2f}"
    row = f"| shapes_place | 200, 2x2 | 16.67, 50.00 | 43.00 | 85.50 | {fitted} | 50.00"
    assert row in (copied.ROOT / "README.md").read_text(encoding="utf-8")
    left = copied.problems()
    assert len(left) == len(screenshots) and all("page_screenshots.py" in one for one in left)


def test_the_table_builtin_is_reproduced_by_its_runs(capsys):
    assert main(["reproduce", "builtin", "--runs", str(FOLDER)]) == 0
    out = capsys.readouterr().out
    rows = (
        len((ROOT / "ttmbench" / "reproduce" / "published" / "builtin.csv").read_text(encoding="utf-8").splitlines())
        - 1
    )
    assert f"{rows} numbers: agrees {rows}" in out


# Again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task", "seeds"), [("first.json", "shapes_color", [0, 1, 2, 3]), ("builtin.json", "shapes_replace", [0])]
)
def test_a_row_comes_out_again(name, task, seeds, tmp_path, monkeypatch):
    """The README's run, and another's first seed: equal before training, and in agreement after it, on every CPU.

    Training amplifies rounding, which depends on the CPU, so trained numbers agree as two repetitions would.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = f"--model tiny-clip --tasks {task} --simple_match --ttm --seeds {','.join(map(str, seeds))} --device cpu"
    assert main([*command.split(), "--use_cache", "off", "--output_path", str(tmp_path / "again.json")]) == 0
    again, reference = read(tmp_path / "again.json"), read(FOLDER / name)
    assert again["task_hashes"][task] == reference["task_hashes"][task]
    found, known = again["results"][task], reference["results"][task]
    raw = {key: value for key, value in known.items() if key.endswith(",none")}
    assert raw and {key: found[key] for key in raw} == raw
    first = [
        [
            (row["seed"], row["selected"], row["candidates"])
            for row in one["ttm"][task]["iterations"]
            if row["iteration"] == 1
        ]
        for one in (again, reference)
    ]
    assert first[0] == [row for row in first[1] if row[0] in seeds], "selected by raw scores"
    assert main(["reproduce", "builtin", "--runs", str(tmp_path), "--allow_missing"]) == 0
