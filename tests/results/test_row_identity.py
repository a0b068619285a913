"""A row of a table is a complete configuration: every setting makes another row, and nothing else does."""

from __future__ import annotations

import csv
import io
import json
from copy import deepcopy

import pytest

from ttmbench.cli import main
from ttmbench.config import PART_KINDS, RunConfig, TTMConfig
from ttmbench.report.board import answer_of, merge
from ttmbench.report.exporters import export_numbers
from ttmbench.report.load import gather
from ttmbench.report.paper_table import paper_table
from ttmbench.results.reader import read_files

TASK = "shapes_color"
METHODS = ("dn", "tent", "zero")
BASE = f"--model tiny-clip --tasks {TASK} --limit 6 --seeds 0 --device cpu --use_cache off --bootstrap_iters 50"
RUN = f"{BASE} --holdout 0.5 --ttm_args iterations=1,epochs=1 --methods ttm,overfit,oracle,"
NO_NUMBER = {
    *("output_path", "batch_size", "on_error", "overwrite", "assertions", "offline", "data_dir", "include_path"),
    *("use_cache", "baseline", "track", "track_args", "log_samples", "save_scores", "save_adapted"),
    *("device", "compile", "deterministic", "trust_remote_code", "audit_labels"),
}
AVERAGED = {"seed", "seeds"}
MORE_NUMBERS = {"tasks", "ttm", "methods", "also", "holdout", "metrics"}
"""Options that add numbers and change no other."""
RESOLVED = {"ttm_args": "methods", "ttm_preset": "methods", "method_args": "methods", "rerank": "ranking"}
"""Options that a document holds resolved, in the records of methods."""
OTHER_DATA = {"task_args": {"seed": 9}, "limit": 5, "samples": "ids.json"}
OF_ALL = {"dtype": "bf16", "interval": "bca", "bootstrap_iters": 7}
OTHER_MODEL = {"model", "model_args", "model_name"}


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """The results document of a run of several methods."""
    folder = tmp_path_factory.mktemp("run")
    assert main([*f"{RUN}{','.join(METHODS)}".split(), "-o", str(folder / "run.json")]) == 0
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def rows(folder, method):
    """Table -> values of its rows of a method."""
    runs, _ = read_files([folder])
    lines = list(csv.DictReader(io.StringIO(export_numbers(runs, None)[0][None])))
    table = paper_table(runs, metrics=["group_match"], columns=["SimpleMatch" if method == "none" else method])
    cells = [text for row in table.rows[:-1] for text, _ in row[table.texts :]]
    found = {
        "csv": [float(line["value"]) for line in lines if (line["method"], line["metric"]) == (method, "group_match")],
        "table": [float(cell.split()[0]) / 100 for cell in cells if cell != "–"],
        "leaderboard": [row.value for row in merge(folder).rows if (row.method, row.metric) == (method, "group_match")],
    }
    if method == "ttm":
        found["report"] = [row.ttm.value for row in answer_of(gather(folder)[0]) if row.ttm is not None]
    return {name: sorted(values) for name, values in found.items()}


def check(folder, document, change, method, expected):
    """Two documents, the second changed and with another value, are so many rows of every table."""
    for name, value in (("one", 0.25), ("two", 0.75)):
        made = deepcopy(document)
        if name == "two":
            change(made)
            made["date"] += 10
        made["results"][TASK][f"group_match,{method}"] = value
        (folder / f"{name}.json").write_text(json.dumps(made), encoding="utf-8")
    for table, values in rows(folder, method).items():
        assert values == pytest.approx(expected), table


def other(value):
    """Another value of a setting, of the same type where that is easy."""
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else f"{value}x"


def test_every_option_is_of_one_kind():
    kinds = (NO_NUMBER, AVERAGED, MORE_NUMBERS, {*RESOLVED}, {*OTHER_DATA}, {*OF_ALL}, OTHER_MODEL)
    assert sum(map(len, kinds)) == len(RunConfig.model_fields)
    assert {*RunConfig.model_fields} == set().union(*kinds), "a new option belongs to one of them"


@pytest.mark.parametrize("option", sorted(NO_NUMBER))
def test_what_changes_no_number_is_one_row(document, tmp_path, option):
    def change(made):
        made["config"][option] = other(made["config"].get(option))

    check(tmp_path, document, change, "ttm", [0.75])


@pytest.mark.parametrize("option", [*OTHER_DATA, *OF_ALL])
def test_an_option_that_changes_numbers_is_another_row(document, tmp_path, option):
    def change(made):
        made["config"][option] = {**OTHER_DATA, **OF_ALL}[option]
        if option in OTHER_DATA:
            made["task_hashes"][TASK] = "another"

    for method in ("ttm", "none", "tent"):
        check(tmp_path, document, change, method, [0.25, 0.75])
    runs = read_files([tmp_path])[0]
    assert {run.called.setting for run in runs} > {""} or all(run.called.setting for run in runs)


@pytest.mark.parametrize("option", ["model_args", "model_name"])
def test_another_model_is_another_row(document, tmp_path, option):
    def change(made):
        made["model_name"] = "mine" if option == "model_name" else made["model_name"]
        made["config"][option] = "mine" if option == "model_name" else {"prompt": "x"}
        made["model_info"]["fingerprint"]["prompt"] = "x" if option == "model_args" else ""

    check(tmp_path, document, change, "ttm", [0.25, 0.75])


KEYS = sorted({*TTMConfig.model_fields} - {"part_args", "lr_note"}) + [f"{kind}.key" for kind in PART_KINDS]


@pytest.mark.parametrize("method", ["ttm", "oracle"])
@pytest.mark.parametrize("key", KEYS)
def test_every_setting_of_ttm_is_another_row(document, tmp_path, key, method):
    def change(made):
        settings = made["methods"][TASK][method]["settings"]
        settings[key] = other(settings.get(key))

    check(tmp_path, document, change, method, [0.25, 0.75])


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_of_a_method_is_another_row(document, tmp_path, method):
    settings = document["methods"][TASK][method]["settings"]
    assert settings
    for key in settings:

        def change(made, key=key):
            made["methods"][TASK][method]["settings"][key] = other(settings[key])

        check(tmp_path, document, change, method, [0.25, 0.75])


MODEL = {"model": "x", "fingerprint": {"weights": "a"}}
RANKING = {"kind": "retrieval", "queries": {"i2t": 6}, "candidates": {"i2t": 6}, "resampled": "images"}
USED = {
    "references": {"task": "x", "images": 6, "captions": 6, "data_sha256": "a" * 64},
    "reward_model": {**MODEL, "is_student": False},
    "rerank": {**MODEL, "k": 5},
}


@pytest.mark.parametrize("name", USED)
def test_what_a_number_used_besides_is_another_row(document, tmp_path, name):
    document, ranking = deepcopy(document), {**RANKING, "rerank": {}}
    document["ranking"] = {TASK: ranking} if name == "rerank" else {}
    place = ranking if name == "rerank" else document["methods"][TASK]["tent"]
    place[name] = USED[name]

    def change(made):
        of = (made["ranking"][TASK] if name == "rerank" else made["methods"][TASK]["tent"])[name]
        of |= {"data_sha256": "b" * 64} if name == "references" else {"fingerprint": {"weights": "b"}}

    check(tmp_path, document, change, "tent", [0.25, 0.75])


def test_a_run_with_a_method_more_changes_no_row(document, tmp_path):
    def change(made):
        del made["methods"][TASK]["dn"]

    check(tmp_path, document, change, "ttm", [0.75])


def test_seeds_of_several_runs_are_averaged(document, tmp_path):
    def change(made):
        made["methods"][TASK]["ttm"]["seeds"] = [1, 2, 3]
        made["config"]["seeds"] = [1, 2, 3]
        made["results"][TASK]["group_match_seed_std,ttm"] = 0.1

    check(tmp_path, document, change, "ttm", [(0.25 + 3 * 0.75) / 4])
    (row,) = [row for row in merge(tmp_path).rows if row.key == "group_match,ttm"]
    assert row.n_seeds == 4 and row.seed_std == pytest.approx(((2 * 0.01 + 0.1875) / 3) ** 0.5)


def test_runs_that_state_a_default_are_one_row_and_others_are_two(tmp_path, capsys):
    """Real runs: a default that is given, another optimizer, and another learning rate."""
    for given in ("coverage=0.25", "ties=exclude", "optimizer=sgd", "lr=1e-3"):
        words = [*BASE.split(), "--ttm", "--ttm_args", f"iterations=1,epochs=1,{given}", "-o", str(tmp_path)]
        assert main(words) == 0
    assert main(["export", str(tmp_path), "--to", "csv"]) == 0
    table = capsys.readouterr()
    assert table.out.count("\ntiny-clip,") == 5, "raw and SimpleMatch have one line, and each of three settings"
    assert "older numbers" not in table.err, "they are equal"
    runs, _ = read_files([tmp_path])
    settings = {line["setting"] for line in csv.DictReader(io.StringIO(export_numbers(runs, None)[0][None]))}
    assert len(settings - {""}) == 3 and not any("," in setting for setting in settings)
