"""The report page: every number is on it, what is damaged is named, images are copied only where that is allowed."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.pages import Page

from ttmbench.cli import main
from ttmbench.data.task_file import find_task
from ttmbench.errors import DataError
from ttmbench.plugins.registry import build_registry
from ttmbench.report import charts
from ttmbench.report.board import answer_of
from ttmbench.report.charts import courses_of, curves_of, draw_curve
from ttmbench.report.html.render import json_block
from ttmbench.report.load import ThumbnailOptions, copies_allowed, gather, read_groups, thumbnails_for
from ttmbench.results.numbers import Number


@pytest.fixture
def copied(tmp_path, reported_runs) -> Path:
    """The finished runs, to be damaged."""
    return Path(shutil.copytree(reported_runs, tmp_path / "runs"))


def document_of(folder: Path, model: str) -> tuple[Path, dict]:
    (path,) = (folder / model).glob("results_*.json")
    return path, json.loads(path.read_text(encoding="utf-8"))


def report(folder: Path, capsys, *options: str) -> tuple[Page, str]:
    """The page that the command writes, and what it says on stderr."""
    target = folder.parent / "page.html"
    assert main(["report", str(folder), "-o", str(target), *options]) == 0
    return Page(target.read_text(encoding="utf-8")), capsys.readouterr().err


def test_every_number_is_on_the_page(reported_runs, capsys):
    page, errors = report(reported_runs, capsys, "--images", "none")
    assert not errors and page.executed == 1
    _, document = document_of(reported_runs, "tiny-clip")
    checked = 0
    for task, values in document["results"].items():
        for key, interval in document["ci"][task].items():
            metric, name = key.split(",")
            track = document["tracks"][task].get(key)
            wanted = (task, metric.replace("_", " "), Number("", "", name, None, track=track).column)
            rows = page.rows(track or "unranked")
            (row,) = [row for row in rows if (row["task"], row["metric"], row["method"]) == wanted]
            value, seeds = f"{100 * values[key]:.2f}", "-"
            if name != "none":
                std, seeds = values[f"{metric}_seed_std,{name}"], "2"
                value += f" ± {100 * std:.2f}" if std else " (2 seeds, identical)"
            expected = {"value": value, "seeds": seeds, "stderr": f"{100 * values[f'{metric}_stderr,{name}']:.2f}"}
            expected |= {"95 % interval": f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}"}
            expected |= {"chance": f"{100 * document['chance'][task][metric]:.2f}"}
            assert expected | {"ties": f"{document['ties'][task][key]:g}"} == {
                name: row[name] for name in (*expected, "ties")
            }
            checked += 1
    assert checked == 27


def test_a_run_states_model_settings_and_status(copied, capsys):
    path, document = document_of(copied, "tiny-clip")
    document["model_info"]["fingerprint"] = {
        **{"weights_sha256": "ab" * 32, "compiled": False, "mean": [0.5, 0.25]},
        "preprocessing": {"crop_size": {"height": 48}, "resize": True, "deep": {"a": {"b": {"c": ["<b>"]}}}},
    }
    document |= {"status": "running", "results": {}, "methods": {}, "artifacts": {}, "breakdowns": {}}
    document["task_status"] = {"shapes_color": "pending", "shapes_replace": "pending"}
    path.write_text(json.dumps(document))
    path, document = document_of(copied, "tiny-clip-seed1")
    error = {"task": "other", "stage": "run", "type": "DataError", "message": "<i>no</i> data"}
    document |= {"status": "failed", "errors": [error], "notes": {"evil_captions": ["a note"]}}
    path.write_text(json.dumps(document))
    page, errors = report(copied, capsys, "--images", "none")
    assert not errors
    for words in (
        f"weights_sha256 {'ab' * 32}, compiled no, mean (0.5, 0.25)",
        "crop_size (height 48), resize yes, deep (a (b {'c': ['<b>']}))",
        *("seeds0, 1", "tasks not reachedshapes_color, shapes_replace"),
        *("tiny-clip running", "tiny-clip-seed1 failed"),
        *("other failed (DataError): <i>no</i> data", "evil_captions: a note"),
    ):
        assert words in " ".join(page.text.split()), words


def test_damaged_files_are_named_and_skipped(copied, tmp_path, capsys):
    path, document = document_of(copied, "tiny-clip")
    whole = path.read_text(encoding="utf-8")
    (copied / "half.json").write_text(whole[: len(whole) // 2])
    (copied / "results_list.json").write_text("[]")
    (copied / "unrelated.json").write_text('{"some": "settings"}')
    samples = next(path.parent.glob("samples_shapes_color_*"))
    samples.write_bytes(samples.read_bytes()[:-200])
    next(path.parent.glob("samples_shapes_replace_*")).unlink()
    (tmp_path / "secret.jsonl").write_text("{}")
    outside = "../../samples_evil_captions_2.jsonl"
    path, document = document_of(copied, "tiny-clip-seed1")
    document["artifacts"] = {outside: {"kind": "samples", "task": "shapes_color", "sha256": "0" * 64, "bytes": 2}}
    path.write_text(json.dumps(document))
    page, errors = report(copied, capsys, "--images", "none")
    named = dict(re.findall(r"skipped: (\S+): (.*)", errors))
    parts = {
        "half.json": "is not JSON",
        "results_list.json": "not a results document",
        f"tiny-clip/{samples.name}": "its sha256 is not",
        f"tiny-clip/{samples.name.replace('color', 'replace')}": "cannot be read",
        f"tiny-clip-seed1/{outside}": "is not of a task of its run",
    }
    assert set(named) == set(parts)
    for name, part in parts.items():
        assert part in named[name] and f"{name}: {named[name]}" in page.text
    assert "2 runs" in page.text, "the whole ones"


def test_only_an_empty_folder_is_an_error(tmp_path, capsys):
    for given, fact in ((tmp_path, "has no results document"), (tmp_path / "nowhere", "does not exist")):
        assert main(["report", str(given)]) == 2
        assert fact in capsys.readouterr().err
    (tmp_path / "results_x.json").write_text("{")
    page, errors = report(tmp_path, capsys)
    assert "skipped: results_x.json" in errors and "0 runs" in page.text
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.json")]) == 2
    assert "must end with .html" in capsys.readouterr().err


def test_captions_and_titles_stay_text(reported_runs, evil_captions, tmp_path, capsys):
    target = tmp_path / "page.html"
    assert main(["report", str(reported_runs), "--title", "A <b>title\x00\ud800</b>", "-o", str(target)]) == 0
    text = target.read_text(encoding="utf-8")
    bad = ("<script>alert", "<img src=x", "<svg onload", "\u2028", "\x07", "<b>title", "\x00")
    assert not [part for part in bad if part in text]
    sets = [json.loads(block) for name, block in Page(text).blocks.items() if name.startswith("set-")]
    (evil,) = [one for one in sets if one["tags"] == ["kind"]]
    assert {caption for group in evil["groups"] for caption in group[1]} == set(evil_captions)
    policy = re.search('Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "default-src &#39;none&#39;" in policy and "unsafe-inline" not in policy and "http" not in policy
    value = ["</script>", "<!--", "\u2028", "\ud800", "&"]
    assert json.loads(str(json_block(value))) == value
    assert not re.search(r"[<>&\u2028\ud800]", str(json_block(value)))


def test_groups_are_those_of_the_samples(reported_runs):
    run = gather(reported_runs)[0][0]
    path = run.checked[0]["samples"]["shapes_color"]
    data = read_groups(run, "shapes_color", path).data
    names = [one["name"] for one in data["methods"]]
    assert names == ["none", "ttm", "placebo"] and data["methods"][1]["seeds"] == [0, 1]
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        group = next(group for group in data["groups"] if group[0] == line["group_id"])
        assert group[1] == line["captions"] and group[2] == line["images"]
        scores, matching, tie, margin, metrics = group[4][names.index(line["method"])][line["seed_index"]]
        assert matching == line["matching"] and bool(tie) == line["tie"]
        assert dict(zip(data["metrics"], metrics, strict=True)) == line["metrics"]
        assert margin == pytest.approx(line["margin"], rel=1e-4)
        assert np.ravel(scores) == pytest.approx(np.ravel(line["scores"]), rel=1e-4)
    at = data["metrics"].index("group_match")
    changed = [group[4][0][0][4][at] != sum(row[4][at] for row in group[4][1]) / 2 for group in data["groups"]]
    assert sum(changed) > 0 and changed == sorted(changed, reverse=True), "changed groups come first"


def test_forced_choices_are_groups_without_scores(tmp_path, reported_runs):
    answer = {"question": "image 1", "order": [1, 0], "prompt": "Which?", "answer": None, "chosen": None}
    answer["right"] = False
    line = {"group_id": "g", "method": "choice", "seed_index": 0, "seed": None, "captions": ["a", "b"], "images": ["x"]}
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({**line, "metrics": {"text_score": 0.0}, "tags": {}, "answers": [answer]}) + "\n")
    run = gather(reported_runs)[0][0]
    (group,) = read_groups(run, "t", path).data["groups"]
    assert group[4] == [[[None, None, 0, None, [0], [["image 1", "Which?", None, False]]]]]
    path.write_text('{"group_id": "g"}\n')
    with pytest.raises(DataError, match="line 1"):
        read_groups(run, "t", path)


def test_copies_follow_the_licence(copied, evil_task, capsys):
    registry = build_registry()
    tasks = ("shapes_color", "mmvp_vlm", "winoground", "colorswap", "sugarcrepe_add_att", "whatsup_vg_one")
    specs = [find_task(registry, task).spec for task in tasks]
    assert [copies_allowed(spec.license, spec.gated) for spec in specs] == [True, True, False, False, False, False]
    path, document = document_of(copied, "tiny-clip")
    document["configs"]["shapes_color"]["license"] = "no redistribution"
    document["configs"]["shapes_replace"]["gated"] = True
    path.write_text(json.dumps(document))
    assert main(["report", str(copied), "--include_path", str(evil_task.parent)]) == 0
    out = capsys.readouterr().out
    assert "images of shapes_color: names only: its licence is stated as “no redistribution”" in out
    assert "images of shapes_replace: names only: its data are gated" in out
    assert "images of evil_captions: 4 small copies\n" in out
    assert main(["report", str(copied), "--allow_images", "shapes_color", "--max_images", "10"]) == 0
    assert "images of shapes_color: 10 small copies; no more than 10" in capsys.readouterr().out


def test_images_are_those_of_the_local_task(reported_runs, evil_task, tmp_path):
    """Its licence counts too, absent data are no error, and captions must be the same."""
    folder = Path(shutil.copytree(evil_task.parent, tmp_path / "task"))
    file = folder / evil_task.name
    file.write_text(file.read_text(encoding="utf-8").replace("CC0-1.0", "no copies please"), encoding="utf-8")
    run = gather(reported_runs)[0][1]
    one = read_groups(run, "evil_captions", run.checked[0]["samples"]["evil_captions"])
    here = ThumbnailOptions(include_path=(str(folder),))
    assert "stated as “no copies please”" in thumbnails_for([one], here).why
    assert len(thumbnails_for([one], replace(here, allowed=frozenset({"evil_captions"}))).images) == 4
    thumbnails = thumbnails_for([one], ThumbnailOptions())
    assert not thumbnails.images and "are not available here (unknown task 'evil_captions'" in thumbnails.why
    other = json.loads(json.dumps(one.data))
    other["groups"][0][1][0] = "another caption"
    here = ThumbnailOptions(include_path=(str(evil_task.parent),))
    thumbnails = thumbnails_for([replace(one, data=other)], here)
    assert len(thumbnails.images) == 2 and "1 groups differ from the local data" in thumbnails.why


def test_images_of_an_own_folder_without_a_licence_are_linked(folder_task, tmp_path, capsys):
    file = folder_task() / "mine.yaml"
    run = ["--model", "tiny-clip", "--tasks", str(file), "--bootstrap_iters", "0", "--log_samples", "-o"]
    assert main([*run, str(tmp_path / "o")]) == 0
    page, words = tmp_path / "page" / "r.html", ["report", str(tmp_path / "o"), "-o"]
    page.parent.mkdir()
    assert main([*words, str(page)]) == 0 and "names only: the data are not available" in capsys.readouterr().out
    assert "img-src data:;" in page.read_text(encoding="utf-8")
    assert main([*words, str(page), "--include_path", str(file.parent)]) == 0
    assert "images of mine: 12 images, linked" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert '"0_0.png":"../mine_task/images/0_0.png"' in text.replace(" ", "") and "img-src data: file:;" in text
    assert (page.parent / "../mine_task/images/0_0.png").is_file()
    assert main([*words, str(page), "--include_path", str(file.parent), "--allow_images", "mine"]) == 0
    assert "12 small copies" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["tasks", "include_path", "data_dir", "task_args", "task"])
def test_no_path_of_a_foreign_document_is_followed(reported_runs, evil_task, tmp_path, monkeypatch, named):
    """Whoever sends a document does not choose which files of the reader's come onto the page."""
    run = gather(reported_runs)[0][1]
    one = read_groups(run, "evil_captions", run.checked[0]["samples"]["evil_captions"])
    private = Path(shutil.copytree(evil_task.parent, tmp_path / "private"))
    here = tmp_path / "here"
    here.mkdir()
    text = evil_task.read_text(encoding="utf-8").replace("path: rows.jsonl", "path: nothing.jsonl")
    (here / evil_task.name).write_text(text, encoding="utf-8")
    config = {**run.document.config, "tasks": ["evil_captions"], "include_path": [], "data_dir": None, "task_args": {}}
    paths = {"tasks": [str(private / evil_task.name)], "include_path": [str(private)], "data_dir": str(private)}
    paths |= {"task_args": {"path": str(private / "rows.jsonl")}}
    config |= {named: paths[named]} if named in paths else {}
    foreign = replace(one, run=replace(run, document=run.document.model_copy(update={"config": config})))
    if named == "task":
        foreign = replace(foreign, task=str(private / evil_task.name))
    opened = []
    monkeypatch.setattr(sys.modules["PIL.Image"], "open", lambda *words, **more: opened.append(words))
    options = ThumbnailOptions(include_path=(str(here),), allowed=frozenset({foreign.task}))
    thumbnails = thumbnails_for([foreign], options)
    assert not thumbnails.images and not opened and "names only" in thumbnails.why


def test_curves_are_the_iterations_of_the_document(reported_runs):
    run = gather(reported_runs)[0][0]
    _, document = document_of(reported_runs, "tiny-clip")
    assert {*courses_of(run.document)} == {(task, kind) for task in document["results"] for kind in ("ttm", "placebo")}
    curves = curves_of(run.document, "shapes_color", "ttm")
    rows = [row for row in document["methods"]["shapes_color"]["ttm"]["iterations"] if row["seed"] == 1]
    assert curves["coverage (%)"][0][1] == ([1, 2], [100 * row["coverage"] for row in rows])
    raw = document["results"]["shapes_color"]["group_match,none"]
    lines, chance = curves["group match (%)"]
    assert lines[1] == ([0, 1, 2], [100 * raw, *(100 * row["metrics"]["group_match"] for row in rows)]) and chance == 50


def test_charts_with_gaps_and_without_values():
    axes = Figure().add_subplot()
    draw_curve(axes, "loss", [([1.0], [math.nan])], math.nan)
    assert [text.get_text() for text in axes.texts] == ["undefined: nothing was selected"]
    axes = Figure().add_subplot()
    draw_curve(axes, "<b> (%)", [([1.0, 2.0, 3.0], [99.0, math.nan, 99.0]), ([1.0], [95.0])], math.nan)
    low, high = axes.get_ylim()
    assert 10 <= high - low < 12 and high < 101, "ten points, about 0 to 100"
    assert axes.lines[0].get_ydata() == pytest.approx([97.0, math.nan, 99.0], nan_ok=True)


def test_figures_have_the_numbers_of_all_models(copied):
    """One figure of each kind for a task: points, bars and intervals are those of the documents."""
    path, document = document_of(copied, "tiny-clip")
    other = Path(shutil.copytree(path.parent, copied / "other")) / path.name
    known = {"model_name": "other", "model_info": {**document["model_info"], "fingerprint": {"other": 1}}}
    other.write_text(json.dumps({**document, **known}))
    runs, _ = gather(copied)
    figures = dict(charts._figures(runs, answer_of(runs)))
    names = {f"{kind}_{task}" for kind in ("iterations", "paired") for task in ("shapes_color", "shapes_replace")}
    names |= {f"categories_{task}_{tag}" for run in runs for task, of in run.document.breakdowns.items() for tag in of}
    assert set(figures) == names
    (tag, values), *_ = document["breakdowns"]["shapes_replace"].items()
    (axes,) = figures[f"categories_shapes_replace_{tag}"]().axes
    bars = [100 * of["group_match,ttm"] for of in values.values() for _ in range(2)]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(bars)
    labels = [label for value in values for label in (value, "other", "tiny-clip")]
    assert [text.get_text() for text in axes.get_yticklabels()] == labels
    (axes,) = figures["iterations_shapes_color"]().axes
    rows = [row["metrics"] for row in document["methods"]["shapes_color"]["ttm"]["iterations"] if row["iteration"] == 2]
    for metric, line in (("group_match", axes.lines[0]), ("group_score", axes.lines[2])):
        assert line.get_ydata()[0] == 100 * document["results"]["shapes_color"][f"{metric},none"]
        assert line.get_ydata()[-1] == pytest.approx(50 * sum(row[metric] for row in rows))
    assert [text.get_text() for text in axes.figure.legends[0].texts][4:] == ["other", "tiny-clip"]
    named = [replace(row, model=f"{row.model} [lr=0.0001]") for row in answer_of(runs)]
    figure = dict(charts._figures(runs, named))["paired_shapes_color"]()
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().width <= figure.bbox.width, "long names are not cut"
    (axes,) = figures["paired_shapes_color"]().axes
    (low, _), (high, _) = axes.collections[0].get_segments()[0]
    assert (low, high) == pytest.approx([100 * end for end in document["ci"]["shapes_color"]["group_match,none"]])


@pytest.mark.slow
def test_figures_are_pdf_and_svg_with_text(copied, tmp_path, capsys):
    """Of one task: matplotlib takes a tenth of a second for each file."""
    figures = tmp_path / "figures"
    shutil.rmtree(copied / "tiny-clip-seed1")
    path, document = document_of(copied, "tiny-clip")
    for key in ("results", "methods", "breakdowns"):
        document[key].pop("shapes_replace", None)
    path.write_text(json.dumps(document))
    found = []
    for _ in range(2):
        report(copied, capsys, "--images", "none", "--figures", str(figures))
        found.append({path.name: path.read_bytes() for path in figures.iterdir()})
    assert found[0] == found[1], "the same bytes again"
    stems = {f"{stem}_shapes_color" for stem in ("iterations", "paired")}
    stems |= {f"categories_shapes_color_{tag}" for tag in ("colors", "shapes")}
    assert set(found[0]) == {f"{stem}.{end}" for stem in stems for end in ("pdf", "svg")}
    for name, content in found[0].items():
        if name.endswith(".pdf"):
            assert b"/Type3" not in content and b"/CIDFontType2" in content and b"/MediaBox [ 0 0 234 " in content
            continue
        texts = list(ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}text"))
        assert any("tiny-clip" in (text.text or "") for text in texts)
        assert any("8px" in text.get("style", "") for text in texts)
    assert main(["report", str(path), "--images", "none", "--figures", str(path / "below")]) == 2
    assert "cannot be written" in capsys.readouterr().err
