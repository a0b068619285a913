"""Exports, each read back by the library of those who read it; tracks stay apart, names from data are never code."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.report.exporters import export_lm_eval, export_model_index, export_mteb, export_numbers
from ttmbench.report.paper_table import paper_table, to_latex
from ttmbench.report.terminal import points
from ttmbench.results.comparison import compare_runs
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import newest
from ttmbench.results.reader import ResultsFile, read_files
from ttmbench.stats import holm

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference" / "first.json"
_STORED = json.loads(REFERENCE.read_text(encoding="utf-8"))["results"]["shapes_color"]
TTM = {
    name: _STORED[f"group_match{ending},ttm"]
    for name, ending in {"value": "", "stderr": "_stderr", "seed_std": "_seed_std"}.items()
}
"""The trained number of the reference run, which depends on the CPU it was computed on."""
EVIL = '=HYPERLINK("x")|<b>\\input{x}_%&\n: ["'


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run with an undefined metric, controls, the oracle, and one group only, so that no interval is defined."""
    path = tmp_path_factory.mktemp("adapted") / "adapted.json"
    ttmbench.simple_evaluate(
        "tiny-clip",
        "shapes_color,shapes_replace",
        ttm={"iterations": 1, "epochs": 1},
        methods=["overfit", "oracle", "placebo"],
        seeds=[0, 1],
        limit=1,
        device="cpu",
        output_path=str(path),
    )
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["results"]["shapes_color"]["group_match_stderr,none"] is None
    document["results"]["shapes_replace"]["image_score,none"] = None
    document["ci"]["shapes_replace"]["image_score,none"] = None
    document["tracks"]["shapes_replace"]["image_score,none"] = "zero_shot"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def began(document) -> str:
    return datetime.fromtimestamp(document["date"], UTC).isoformat(timespec="seconds")


@pytest.fixture
def reference():
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


def on_hub(document, task="shapes_color"):
    """The same run, of data that the hub serves."""
    source = {"kind": "huggingface", "path": "owner/colours", "revision": "abc123", "split": "test"}
    document["datasets"][task] |= {"source": source, "revision": "abc123"}
    return document


def run_of(document, path="x.json"):
    return ResultsFile(Path(path), ResultsDocument.model_validate(document))


def text_of(export, runs):
    return export(runs, None)[0][None]


def lm_eval_document(run):
    return json.loads(export_lm_eval([run], None)[0][None])


def model_index(*runs, url=None):
    """What the Hub's library reads of the metadata, and the tasks that were left out."""
    from huggingface_hub.repocard_data import model_index_to_eval_results

    texts, left_out = export_model_index(runs, None, url)
    name, results = model_index_to_eval_results(yaml.safe_load(texts[None])["model-index"])
    return name, results, left_out


def keys(document):
    return {
        (task, *key.split(","))
        for task, numbers in document.results.items()
        for key in numbers
        if "_stderr," not in key and "_seed_std," not in key
    }


def test_a_part_of_a_task_never_replaces_the_whole(reference):
    """A newer run of eight groups, of which every number is 1."""
    part = {**reference, "date": reference["date"] + 10}
    part["results"] = {"shapes_color": dict.fromkeys(reference["results"]["shapes_color"], 1.0)}
    part["n-samples"] = {"shapes_color": {"original": 200, "effective": 8}}
    runs = [run_of(reference), run_of(part, "part.json")]
    for order in (runs, runs[::-1]):
        assert {one.origin.file for one in newest(number for run in order for number in run.numbers)} == {"x.json"}
        assert {*paper_table(order).titles} == {"", "shapes_color (n = 200)"}
        _, results, left_out = model_index(*order)
        assert {one.dataset_args["groups"] for one in results} == {200} and not left_out
    titles = paper_table([run_of({**part, "model_name": "a-model"}), run_of(reference)]).titles
    assert list(dict.fromkeys(titles)) == ["", "shapes_color (n = 200)", "shapes_color (n = 8 of 200)"]
    table = pd.read_csv(io.StringIO(text_of(export_numbers, runs)))
    assert table.groupby("file")["limited"].first().to_dict() == {"x.json": False}
    with pytest.raises(UsageError, match="8 of 200 groups are not a result for the task"):
        model_index(run_of(part))


def test_lm_eval_has_the_keys_its_readers_ask_for(adapted):
    document = lm_eval_document(read_files([adapted])[0][0])
    assert set(document["group_subtasks"]) == set(document["results"]) == {"shapes_color", "shapes_replace"}
    for task, numbers in document["results"].items():
        assert numbers.pop("alias") == task
        for key, value in numbers.items():
            metric, name = key.split(",")
            if metric.endswith("_stderr"):
                assert value == "N/A" or type(value) is float
            else:
                assert type(value) is float and f"{metric}_stderr,{name}" in numbers
                assert document["higher_is_better"][task][metric] is True
    assert "image_score,none" not in document["results"]["shapes_replace"], "undefined is left out"
    assert document["results"]["shapes_color"]["group_match_stderr,ttm"] == "N/A"
    assert not any("seed_std" in key for numbers in document["results"].values() for key in numbers)
    assert document["config"]["limit"] == 1 and document["n-samples"]["shapes_color"]["effective"] == 1
    assert isinstance(document["total_evaluation_time_seconds"], str) and document["model_name"] == "tiny-clip"


def test_lm_eval_shows_groups_as_their_tasks_and_their_mean(reference):
    reference["groups"] = {"shapes": {"group_match,none": 0.73, "group_match_stderr,none": None}}
    reference["group_subtasks"] = {"shapes": ["shapes_color"]}
    document = lm_eval_document(run_of(reference))
    assert document["group_subtasks"] == {"shapes": ["shapes_color"]}
    assert document["groups"]["shapes"]["group_match,none"] == document["results"]["shapes"]["group_match,none"] == 0.73
    assert document["versions"]["shapes"] == "N/A" and document["higher_is_better"]["shapes"]["group_match"] is True


def test_lm_eval_file_lies_where_its_readers_look(tmp_path, capsys):
    assert main(["export", str(REFERENCE), "--to", "lm-eval", "-o", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").rglob("*.json")
    assert re.fullmatch(r"tiny-clip/results_[0-9T.-]+\.json", path.relative_to(tmp_path / "out").as_posix())
    assert json.loads(path.read_text(encoding="utf-8"))["results"]["shapes_color"]["group_match,ttm"] == TTM["value"]
    assert main(["export", str(REFERENCE), str(REFERENCE), "--to", "lm-eval"]) == 2
    assert "is one run" in capsys.readouterr().err
    document = json.loads(REFERENCE.read_text(encoding="utf-8")) | {"model_name": "../../x"}
    ((outside, _),) = export_lm_eval([run_of(document)], tmp_path)[0].items()
    assert outside.resolve().is_relative_to(tmp_path)


def test_model_index_is_read_back_by_the_hubs_library(reference):
    name, found, left_out = model_index(run_of(on_hub(reference)), url="https://example.org/results")
    assert name == "tiny-clip" and len(found) == 10 and not left_out
    values = {one.metric_type: one.metric_value for one in found}
    assert values["group_score (raw)"] == 12.5 and values["group_match (SimpleMatch)"] == 73
    assert values["group_match (TTM)"] == pytest.approx(100 * TTM["value"]) and len(values) == 10, (
        "no two tracks share a name"
    )
    one = next(one for one in found if one.metric_type == "group_match (TTM)")
    assert (one.dataset_type, one.dataset_name, one.dataset_revision) == ("owner/colours", "shapes_color", "abc123")
    assert one.metric_args["seeds"] == 4 and one.metric_args["seed_std"] == pytest.approx(100 * TTM["seed_std"])
    assert one.metric_name == "group match (TTM, test-time track), percent"
    assert one.source_url == "https://example.org/results"


def test_a_model_card_that_exists_keeps_what_it_has(tmp_path, reference):
    from huggingface_hub import EvalResult, ModelCard

    card = tmp_path / "README.md"
    card.write_text(
        "---\nlicense: mit\ntags: [clip]\nmodel-index:\n- name: mine\n  results:\n  - task: {type: t}\n"
        "    dataset: {name: d, type: d}\n    metrics:\n    - {type: acc, value: 1.0}\n---\n# Mine\n\ntext\n"
    )
    source = tmp_path / "x.json"
    for number in (0.5, 0.6):
        reference["results"]["shapes_color"]["group_match,ttm"] = number
        source.write_text(json.dumps(reference))
        assert main(["export", str(source), "--to", "model-index", "-o", str(card)]) == 0
    read = ModelCard.load(card)
    assert read.data.license == "mit" and read.data.tags == ["clip", "ttmbench"] and read.data.model_name == "mine"
    assert "# Mine\n\ntext" in read.text
    values = [one.metric_value for one in read.data.eval_results if one.metric_type == "group_match (TTM)"]
    assert values == [60.0] and len(read.data.eval_results) == 11
    old = EvalResult(task_type="t", dataset_type="d", dataset_name="d", metric_type="acc", metric_value=1.0)
    assert old in read.data.eval_results
    fresh = tmp_path / "new.md"
    assert main(["export", str(source), "--to", "model-index", "-o", str(fresh)]) == 0
    assert len(ModelCard.load(fresh).data.eval_results) == 10


def test_what_is_no_result_stays_off_the_hub(adapted, reference, capsys):
    assert main(["export", str(adapted), "--to", "model-index"]) == 2
    assert "1 of 200 groups are not a result for the task" in capsys.readouterr().err
    document = json.loads(adapted.read_text())
    for counts in document["n-samples"].values():
        counts["original"] = counts["effective"]
    _, found, _ = model_index(run_of(document))
    methods = {re.search(r"\((.*)\)", one.metric_type)[1] for one in found}
    assert methods == {"raw", "SimpleMatch", "TTM", "overfit"} and all(one.metric_value is not None for one in found)
    with pytest.raises(UsageError, match="for one model"):
        model_index(run_of(document), run_of({**reference, "model_name": "other"}))


def test_csv_is_tidy_and_read_back_by_pandas(adapted, reference):
    runs, _ = read_files([adapted, REFERENCE])
    rates = ("value", "stderr", "ci_low", "ci_high", "seed_std", "chance", "ties")
    exact = dict.fromkeys(rates, lambda text: float(text or "nan"))  # pandas' own way was once off in the last place
    text = text_of(export_numbers, runs)
    table = pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""], converters=exact)
    assert len(table) == sum(len(keys(run.document)) for run in runs)
    is_first = table.file.str.endswith("/first.json")
    one = table[is_first & (table.metric == "group_match") & (table["method"] == "ttm")].iloc[0]
    assert (one.value, one.stderr, one.seed_std) == (TTM["value"], TTM["stderr"], TTM["seed_std"])
    low, high = reference["ci"]["shapes_color"]["group_match,ttm"]
    assert (one.ci_low, one.ci_high, one.seeds, one.chance, one.groups) == (low, high, 4, 0.5, 200)
    assert (one.track, one.method_name, one.version, one.date) == ("test_time", "TTM", 1, began(reference))
    undefined = table[(table.task == "shapes_replace") & (table.metric == "image_score") & (table["method"] == "none")]
    assert undefined["value"].isna().all() and len(undefined) == 1
    assert set(table[table.track.isna()]["method"]) == {"placebo"}
    ours = table[~is_first & (table.metric == "group_match")]
    assert set(zip(ours["method"], ours.method_name, ours.track.fillna(""), ours.seeds.fillna(0), strict=True)) == {
        *(("none", "SimpleMatch", "matching", 0), ("ttm", "TTM", "test_time", 2), ("oracle", "oracle", "oracle", 2)),
        *(("overfit", "overfit", "test_time", 2), ("placebo", "placebo", "", 2)),
    }
    assert set(table[table["method"] == "none"].track.dropna()) == {"zero_shot", "matching"}


@pytest.fixture(scope="module")
def tabled(tmp_path_factory):
    """Two settings of one model, and another model."""
    folder = tmp_path_factory.mktemp("tabled")
    short = {"iterations": 1, "epochs": 1}
    for name, model, lr in (("a", "tiny-clip", 3e-3), ("b", "tiny-clip", 1e-7), ("c", "tiny-clip-seed1", 1e-3)):
        more = {"ttm": {**short, "lr": lr}, "seeds": [0, 1], "output_path": str(folder / f"{name}.json")}
        ttmbench.simple_evaluate(model, "shapes_place", limit=60, bootstrap_iters=20, device="cpu", **more)
    return folder


def table_of(capsys, *words):
    assert main(["export", *map(str, words), "--to", "md"]) == 0
    table, caption = re.sub(r"\\(.)", r"\1", capsys.readouterr().out.replace("**", "!")).split("\n\n")
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    return heads, {(row[0], row[1]): row[2:] for row in rows}, caption


def test_a_table_tests_gains_as_compare_does(tabled, capsys):
    heads, rows, caption = table_of(capsys, tabled)
    assert [head.rpartition(": ")[2] for head in heads[2:]] == ["raw", "SimpleMatch", "TTM"]
    assert all(head.startswith("shapes_place (n = 60 of 200): ") for head in heads[2:])
    raw = rows["tiny-clip", ""]
    assert raw[2] == "–" and rows["chance", ""] == ["16.67", "50.00", "50.00"]
    settings = [setting for model, setting in rows if model == "tiny-clip" and setting]
    assert len(settings) == 2 and all(rows["tiny-clip", one][:2] == ["–", "–"] for one in settings)
    runs = {run.path.stem: run for run in read_files([tabled])[0]}
    found = {name: next(row for row in compare_runs(run, run, metrics=["group_match"])) for name, run in runs.items()}
    ps = dict(zip(found, holm([row["p"] for row in found.values()]), strict=True))
    places = {"a": ("tiny-clip", "lr=0.003"), "b": ("tiny-clip", "lr=1e-07"), "c": ("tiny-clip-seed1", "lr=0.001")}
    cells = {name: rows[place][2].strip("!") for name, place in places.items()}
    for name, row in found.items():
        gain = points(row["difference"]) + ("*" if ps[name] <= 0.05 else "")
        assert f"({gain})" in cells[name] and cells[name].startswith(f"{100 * row['other']:.2f} "), name
    assert "(2 seeds, identical) (0.00)" in cells["b"], "a gain of nothing has no sign"
    assert "Holm over 3 tests" in caption and any(cell.startswith("!") for cell in raw)
    assert main(["export", str(tabled), "--to", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    adapted = {(line["model"], line["setting"]): line for line in lines if line["method"] == "TTM"}
    assert len(lines) == 7 and len(adapted) == 3
    for name, row in found.items():
        line = adapted[places[name]]
        assert (float(line["gain"]), float(line["p"])) == pytest.approx((row["difference"], ps[name]), abs=1e-12)
        assert (line["best"] == "True") == rows[places[name]][2].startswith("!")


def test_a_table_is_what_is_asked_for(tabled, capsys):
    heads, rows, caption = table_of(capsys, tabled, "--rows", "tiny-clip", "--columns", "top*,raw,ttm", "--by", "axis")
    assert [head.partition(" (")[0] for head in heads[1:]] == ["setting", *["shapes_place/top-bottom"] * 2]
    assert all(" of ?): " in head for head in heads[2:]), "of a part of the task it is unknown how many have the value"
    assert {model for model, _ in rows} == {"tiny-clip", "chance"}
    words = ["--baseline", "tiny-clip", "--metrics", "image_score,group_score", "--columns", "raw"]
    heads, rows, caption = table_of(capsys, tabled, *words)
    assert [head.rpartition("raw: ")[2] for head in heads[1:]] == ["image score", "group score"]
    cells = {model: [first, *others] for (model, first), others in rows.items()}
    values = [
        [float(cell.strip("!").split(" ")[0]) for cell in cells[model]] for model in ("tiny-clip", "tiny-clip-seed1")
    ]
    gains = [float(cell.split("(")[1].partition(")")[0].strip("*")) for cell in cells["tiny-clip-seed1"]]
    assert gains == pytest.approx([b - a for a, b in zip(*values, strict=True)], abs=0.011)
    assert "over tiny-clip in" in caption
    for wrong in (["--rows", "x"], ["--columns", "x"], ["--metrics", "x"], ["--baseline", "x"], ["--by", "x"]):
        assert main(["export", str(tabled), "--to", "md", *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err


def test_a_baseline_model_counts_in_each_of_its_rows(tabled, tmp_path, capsys):
    more = {"methods": ["sinkhorn"], "device": "cpu", "output_path": str(tmp_path / "d.json")}
    ttmbench.simple_evaluate("tiny-clip-seed1", "shapes_place", limit=60, bootstrap_iters=20, **more)
    words = [tabled, tmp_path, "--columns", "ttm,sinkhorn", "--baseline"]
    heads, rows, _ = table_of(capsys, *words, "tiny-clip-seed1")
    assert [head.rpartition(": ")[2] for head in heads[2:]] == ["TTM", "sinkhorn"]
    assert rows["tiny-clip-seed1", ""][0] == rows["tiny-clip-seed1", "lr=0.001"][1] == "–"
    before = float(rows["tiny-clip-seed1", "lr=0.001"][0].strip("!").split(" ")[0])
    for setting in ("lr=0.003", "lr=1e-07"):
        value, gain = re.match(r"([\d.]+).*\(([+-]?[\d.]+)[*]?\)", rows["tiny-clip", setting][0].strip("!")).groups()
        assert float(gain) == pytest.approx(float(value) - before, abs=0.011)
    assert main(["export", *map(str, words), "tiny-clip", "--to", "csv"]) == 2
    assert "several settings" in capsys.readouterr().err


def test_latex_and_markdown_have_the_cells_of_the_table(reference, capsys):
    stored = reference["results"]["shapes_color"]
    matched, ttm, spread = (
        100 * stored[key] for key in ("group_match,none", "group_match,ttm", "group_match_seed_std,ttm")
    )
    row = f"tiny-clip & 12.50 & {matched:.2f} & {ttm:.2f} $\\pm$ {spread:.2f} (${ttm - matched:+.2f}$$^\\circ$) \\\\"
    text = to_latex(paper_table([run_of(reference)]))
    assert row in text and r"\multicolumn{3}{c}{shapes\_color (n = 200)}" in text and r"\cmidrule(lr){2-4}" in text
    assert "not tested" in text and "<" not in text, "its samples are not beside it"
    assert main(["export", str(REFERENCE), "--to", "md"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"| tiny-clip | 12.50 | {matched:.2f} | {ttm:.2f} ± {spread:.2f} ({ttm - matched:+.2f}°) |" in lines


def test_names_from_data_are_never_code(reference):
    run = run_of({**on_hub(reference), "model_name": EVIL})
    assert set(pd.read_csv(io.StringIO(text_of(export_numbers, [run])))["model"]) == {"'" + EVIL}
    text = to_latex(paper_table([run]))
    assert r"\input" not in text and r"\textbackslash{}input\{x\}\_\%\&" in text
    assert model_index(run)[0] == EVIL


def test_the_command_takes_folders_and_names_what_it_skips(tmp_path, reference, capsys):
    (tmp_path / "a.json").write_bytes(REFERENCE.read_bytes())
    (tmp_path / "b.json").write_bytes(REFERENCE.read_bytes()[:999])
    assert main(["export", str(tmp_path), "--to", "numbers", "-o", str(tmp_path / "deep" / "x.csv")]) == 0
    out = capsys.readouterr()
    assert "b.json: is not JSON (" in out.err and out.out.strip().endswith("x.csv")
    assert len(pd.read_csv(tmp_path / "deep" / "x.csv")) == 10
    assert main(["export", str(tmp_path / "b.json"), "--to", "numbers"]) == 4
    assert main(["export", str(tmp_path / "a.json"), "--to", "xml"]) == 2
    assert "--to" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "a.json"), "--to", "numbers", "--source_url", "x"]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["export", str(tmp_path / "empty"), "--to", "numbers"]) == 2
    (tmp_path / "a.json").write_text(json.dumps({**reference, "status": "interrupted"}))
    assert main(["export", str(tmp_path / "a.json"), "--to", "latex"]) == 0
    assert "status interrupted: only finished tasks are exported" in capsys.readouterr().err


def test_mteb_gets_the_tasks_that_it_has(tmp_path, capsys):
    scores = np.random.default_rng(0).normal(size=(400, 2, 2))
    winoground, counts = tmp_path / "w.json", {}
    np.save(tmp_path / "w.npy", scores)
    assert main(["score", str(tmp_path / "w.npy"), "--task", "winoground", "-o", str(winoground)]) == 0
    assert main(["export", str(winoground), "--to", "mteb", "-o", str(tmp_path / "out")]) == 0
    written = json.loads((tmp_path / "out" / "w" / "no_revision_available" / "Winoground.json").read_text())
    results = json.loads(winoground.read_text())["results"]["winoground"]
    assert set(written) == {"dataset_revision", "task_name", "mteb_version", "scores", "evaluation_time"}
    (numbers,) = written["scores"]["test"]
    for theirs, ours in (("text_acc", "text_score"), ("image_acc", "image_score"), ("accuracy", "group_score")):
        counts[theirs] = round(400 * results[f"{ours},none"])
        assert numbers[theirs] == counts[theirs] / 400
    assert numbers["main_score"] == numbers["accuracy"] and numbers["languages"] == ["eng-Latn"]
    older = json.loads(winoground.read_text())
    older["date"] -= 10
    older["results"]["winoground"]["text_score,none"] = 0.25
    runs = [run_of(older), run_of(json.loads(winoground.read_text()))]
    for order in (runs, runs[::-1]):
        (text,) = export_mteb(order, None)[0].values()
        assert json.loads(text)["scores"]["test"][0]["text_acc"] == numbers["text_acc"], "the newest counts"
    scores[:7, 0, 1] = scores[:7, 0, 0]
    np.save(tmp_path / "w.npy", scores)
    assert main(["score", str(tmp_path / "w.npy"), "--task", "winoground", "-o", str(winoground)]) == 0
    assert main(["export", str(winoground), "--to", "mteb"]) == 2
    assert (
        "nothing to export: Winoground: 7 groups have ties, which mteb decides by position" in capsys.readouterr().err
    )
    assert main(["export", str(REFERENCE), "--to", "mteb"]) == 2
    assert "shapes_color: mteb has no such task" in capsys.readouterr().err


def test_mteb_counts_ties_as_correct_where_there_is_one_image(tmp_path, capsys):
    scores = np.random.default_rng(1).normal(size=(5000, 1, 5))
    scores[:9, 0, 1:] = scores[:9, 0, :1]
    np.save(tmp_path / "s.npy", scores)
    assert (
        main(["score", str(tmp_path / "s.npy"), "--task", "aro_flickr30k_order", "-o", str(tmp_path / "s.json")]) == 0
    )
    capsys.readouterr()
    assert main(["export", str(tmp_path / "s.json"), "--to", "mteb"]) == 0
    numbers = json.loads(capsys.readouterr().out)["scores"]["test"][0]
    results = json.loads((tmp_path / "s.json").read_text())["results"]["aro_flickr30k_order"]
    assert numbers["text_acc"] == results["text_score_ties_right,none"] > results["text_score,none"]
