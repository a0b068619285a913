"""Two checkpoints are two models, whatever their folders; runs with different settings are never mixed in a table."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from support.documents import trained, whole_document, write_run

import ttmbench
from ttmbench.cli import main
from ttmbench.config import RunConfig
from ttmbench.report.board import answer_of, merge
from ttmbench.report.load import gather
from ttmbench.results.document import ResultsDocument
from ttmbench.results.models import command_of, names_of_runs, stated_model, tell_apart
from ttmbench.results.numbers import newest
from ttmbench.results.reader import read_files

ASSETS = Path(ttmbench.__file__).resolve().parents[1] / "model_adapters" / "assets"
RATES = {"std": 1e-5, "lr3": 3e-3, "cov": 1e-5}
MODELS, TASKS = ("clip", "other"), ("shapes_color", "shapes_place")


def names(*documents):
    return tell_apart([stated_model(ResultsDocument.model_validate(one)) for one in documents])


def document(path=None, weights="w", name=None, date=0.0, model="hf", **fingerprint):
    """A run of a checkpoint; by default it is called as a run would call it."""
    arguments = {} if path is None else {"pretrained": path}
    return whole_document(
        {"t": {"group_match,none": 0.5}},
        model_name=name or (Path(path).name if path else model),
        config={"model": model, "model_args": arguments},
        model_info={"fingerprint": {"weights_sha256": weights, **fingerprint}} if weights else {},
        date=date,
    )


def test_folders_of_one_name_are_told_apart_by_the_shortest_path():
    one, two = document("a/checkpoint-500", "w1"), document("b/checkpoint-500", "w2")
    assert names(one) == ["checkpoint-500"], "alone it keeps its name"
    assert names(one, two) == ["a/checkpoint-500", "b/checkpoint-500"]
    deep = [document(f"/runs/{run}/out/checkpoint-500/", f"w{run}") for run in (1, 2)]
    assert names(*deep) == ["1/out/checkpoint-500", "2/out/checkpoint-500"]
    assert names(document("checkpoint-500", "w1"), document("../x/checkpoint-500", "w2")) == [
        "checkpoint-500",
        "x/checkpoint-500",
    ]
    seeds = [document(rf"C:\adapted\{task}\seed_0", task, name="seed_0") for task in ("shapes", "places")]
    assert names(*seeds) == ["shapes/seed_0", "places/seed_0"], "as --save_adapted calls its folders"


def test_the_way_of_scoring_stays_in_the_name():
    one, two = (
        document(f"{run}/llava", run, name="vqascore/llava", model="vqascore", prompt="?") for run in ("a", "b")
    )
    assert names(one, two) == ["vqascore/a/llava", "vqascore/b/llava"]


def test_one_checkpoint_is_one_model():
    here, copy = document("a/checkpoint-500", date=1), document("b/other", date=2, device="cuda", n_parameters=3)
    assert names(here, copy) == ["other", "other"], "the newest name"
    assert names(here, document("b/checkpoint-500", name="mine")) == ["mine", "mine"], "a given name goes first"
    registered = document(model="siglip-b16", pretrained="google/siglip")
    assert (
        names(registered, document("google/siglip", date=1, pretrained="google/siglip", name="google/siglip"))
        == ["google/siglip"] * 2
    )


def test_two_names_given_to_one_checkpoint_are_two_rows():
    assert names(document("x", name="slow"), document("x", name="fast"), document("x")) == ["slow", "fast", "x"]


def test_settings_that_change_numbers_are_another_model_and_the_machine_is_not():
    full, half = document("x", dtype="float32"), document("x", dtype="bfloat16")
    assert names(full, half) == ["x (float32)", "x (bfloat16)"]
    assert len(set(names(document("x", prompt="a"), document("x", prompt="b")))) == 2
    assert all(name.startswith("x (") for name in names(document("x", prompt="a"), document("x", prompt="b")))
    machines = [
        document("x", **{key: value}) for key in ("device", "attn_implementation", "compiled") for value in "ab"
    ]
    assert set(names(*machines)) == {"x"}
    api = [document(weights=None), document(weights=None)]
    for one, server in zip(api, ("gpt-1", "gpt-2"), strict=True):
        one["model_info"] = {"fingerprint": {"pretrained": server}}
    assert len(set(names(*api))) == 2, "without a digest of weights their name counts"


def test_documents_without_a_fingerprint_go_by_name():
    old, new = document("x", weights=None), document("x", "w1")
    assert names(old, new) == ["x", "x"]
    assert names(old, old, document("y", weights=None)) == ["x", "x", "y"]
    several = names(old, document("a/x", "w1"), document("b/x", "w2"))
    assert len(set(several)) == 3 and several[1:] == ["a/x", "b/x"]
    assert names({**old, "model_name": "", "config": {}, "model_info": {}}) == ["unnamed"]


def test_names_given_twice_to_two_checkpoints_say_where_they_lie():
    assert names(document("a/x", "w1", "mine"), document("b/x", "w2", "mine")) == ["mine (a/x)", "mine (b/x)"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of two checkpoints in folders of one name, by the command line, and of one of them under a given name."""
    place = tmp_path_factory.mktemp("checkpoints")
    for folder, weights in (("a", "tiny_clip"), ("b", "tiny_clip_seed1")):
        shutil.copytree(ASSETS / weights, place / folder / "checkpoint-500")
        words = ["-M", "hf", "-a", f"pretrained={place}/{folder}/checkpoint-500", "-t", "shapes_color", "--limit", "6"]
        words += ["--device", "cpu", "--bootstrap_iters", "0", "--use_cache", "off", "--log_samples"]
        assert main([*words, "-o", str(place / "runs")]) == 0
        if folder == "b":
            assert main([*words, "-o", str(place / "named"), "--name", "mine"]) == 0
    return place


def test_two_checkpoints_are_two_rows_everywhere(runs, tmp_path, capsys):
    assert main(["leaderboard", str(runs / "runs"), "-o", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "leaderboard.json").read_text())["rows"]
    assert {row["model"] for row in rows} == {"a/checkpoint-500", "b/checkpoint-500"}
    assert len({row["fingerprint"] for row in rows}) == 2
    assert main(["compare", *sorted(map(str, (runs / "runs").rglob("results_*.json")))]) == 0
    assert main(["report", str(runs / "runs"), "--images", "none", "-o", str(tmp_path / "r.html")]) == 0
    assert main(["export", str(runs / "runs"), "--to", "numbers", "-o", str(tmp_path / "r.csv")]) == 0
    assert main(["export", str(runs / "runs"), "--to", "latex"]) == 0
    printed = capsys.readouterr().out
    assert "a/checkpoint-500 -> b/checkpoint-500" in printed and "b/checkpoint-500 & " in printed
    page = (tmp_path / "r.html").read_text()
    assert "a/checkpoint-500" in page and "b/checkpoint-500" in page
    with (tmp_path / "r.csv").open() as file:
        assert {row["model"] for row in csv.DictReader(file)} == {"a/checkpoint-500", "b/checkpoint-500"}
    found, _ = read_files([runs / "runs"])
    assert len(newest(one for run in found for one in run.numbers)) == 2 * len(found[0].numbers)


def test_a_name_says_what_a_row_is_called(runs, tmp_path):
    assert (runs / "named" / "mine").is_dir()
    assert main(["leaderboard", str(runs), "-o", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "leaderboard.json").read_text())["rows"]
    assert {row["model"] for row in rows} == {"checkpoint-500", "mine"}, "the newest run of b and the named one are one"


def write_cell(folder, setting, model, task, value, date=1.7e9):
    """A cell of a sweep where a sweep writes it."""
    numbers = {"group_score,none": 0.5, "group_match,none": 0.5, "group_match,ttm": value}
    rate = {"settings": {"lr": RATES[setting], "lr_note": setting}, "seeds": [0]}
    return write_run(
        folder / setting / model / task,
        "results.json",
        numbers,
        task,
        model_name=model,
        methods={task: {"ttm": trained(**rate)}},
        date=date,
    )


@pytest.fixture
def board(tmp_path):
    """A sweep of 3 settings, 2 models and 2 tasks, each cell with a number of its own."""
    folder = tmp_path / "board"
    for number, (setting, model, task) in enumerate((s, m, t) for s in RATES for m in MODELS for t in TASKS):
        write_cell(folder, setting, model, task, number / 100, 1.7e9 + number)
    (folder / "sweep.json").write_text(json.dumps({"kind": "sweep"}))
    return folder


def tables(folder, capsys):
    """Every table of a folder as identity of its rows -> value after TTM."""
    runs = read_files([folder])[0]
    assert main(["export", str(folder), "--to", "numbers"]) == 0
    lines = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert main(["export", str(folder), "--to", "csv", "--columns", "ttm"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    return {
        "numbers": {
            (one.own_model, one.setting, one.task): one.value
            for one in newest(one for run in runs for one in run.numbers)
            if one.method == "ttm"
        },
        "lines": {
            (line["model"], line["setting"], line["task"]): float(line["value"])
            for line in lines
            if line["method"] == "ttm"
        },
        "table": {(row["model"], row["setting"], row["task"]): float(row["value"]) for row in table},
        "leaderboard": {
            (row.own_model, row.setting, row.task): row.value for row in merge(folder).rows if row.method == "ttm"
        },
        "report": {
            (row.ttm.own_model, row.ttm.setting, row.task): row.ttm.value
            for row in answer_of(gather(folder)[0])
            if row.ttm is not None
        },
        "frame": {
            (row.model, row.setting, row.task): row.value
            for result in ttmbench.read_results(folder)
            for row in result.to_frame().query("method == 'ttm'").itertuples()
        },
    }


def test_every_table_of_a_sweep_has_a_row_for_each_setting(board, capsys):
    expected = {
        (model, setting, task): number / 100
        for number, (setting, model, task) in enumerate((s, m, t) for s in RATES for m in MODELS for t in TASKS)
    }
    for name, rows in tables(board, capsys).items():
        assert rows == expected, name


@pytest.mark.parametrize("setting", RATES)
def test_a_cell_that_ran_again_moves_no_other_number(board, capsys, setting):
    before = tables(board, capsys)
    write_cell(board, setting, "clip", "shapes_color", 0.99, date=1.8e9)
    for name, rows in tables(board, capsys).items():
        assert rows == before[name] | {("clip", setting, "shapes_color"): 0.99}, name


def test_runs_outside_sweeps_are_told_apart_by_the_arguments_that_differ(tmp_path, board, capsys):
    (board / "sweep.json").unlink()
    runs, _ = read_files([board])
    assert {run.called.setting for run in runs} == {"lr=1e-05", "lr=0.003"}
    assert len(tables(board, capsys)["table"]) == 8, "std and cov have the same arguments here, so the newest counts"


def test_tables_of_one_setting_are_without_it(board, capsys):
    runs, _ = read_files([board / "std"])
    assert {run.called.words for run in runs} == {*MODELS}
    assert main(["export", str(board / "std"), "--to", "numbers"]) == 0
    assert {row["setting"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))} == {""}


def test_long_settings_stay_apart(tmp_path):
    for name in "ab":
        long = {"settings": {"schedule": "x" * 500 + name}}
        write_run(tmp_path, f"{name}.json", {"group_match,ttm": 0.5}, methods={"t": {"ttm": trained(**long)}})
    names = names_of_runs([(run.path, run.document) for run in read_files([tmp_path])[0]])
    assert len({name.words for name in names}) == 2 and all(len(name.setting) < 150 for name in names)


def test_a_command_is_made_of_the_configuration_and_quoted():
    settings = {"model": "hf", "model_args": {"pretrained": "a/b"}, "tasks": ["t", "u"], "ttm": True, "seeds": [0, 1]}
    of_the_sender = {"output_path": "$(curl${IFS}x)", "data_dir": "/home/me", "save_scores": True}
    config = RunConfig(**settings, model_name="$(curl${IFS}x)", **of_the_sender).model_dump(mode="json")
    document = ResultsDocument.model_validate(whole_document({}, config=config, command="rm -rf /"))
    shown = (
        "ttmbench --model hf --model_args pretrained=a/b --name '$(curl${IFS}x)' --tasks t,u --seeds 0,1 --methods ttm"
    )
    assert command_of(document) == shown
    scored = ResultsDocument.model_validate(
        whole_document({}, config={"scores": "a b.npz", "task": "t", "limit": None})
    )
    assert command_of(scored) == "ttmbench score 'a b.npz' --task t"
    assert command_of(ResultsDocument.model_validate(whole_document({}, command="rm -rf /"))) == ""
