"""mteb's results as published tables: their counts, the rule that compares them, the script that reads them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from support.checkout import load_script
from support.documents import raw_run

from ttmbench.cli import main
from ttmbench.reproduce.compared import compare, select
from ttmbench.reproduce.tables import load_table, shipped_tables
from ttmbench.results.document import ResultsDocument

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT.parent / "shared" / "published" / "mteb_results.csv"
TABLES = {
    "mteb_aro_coco_order": 47,
    "mteb_aro_flickr_order": 47,
    "mteb_aro_visual": 94,
    "mteb_retrieval": 656,
    "mteb_imagecode": 47,
    "mteb_imagenet": 40,
    "mteb_sugarcrepe": 40,
    "mteb_winoground": 141,
}
LISTED = 5136
B32, H14 = "openai/clip-vit-base-patch32", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


@pytest.fixture(scope="module")
def script():
    return load_script("mteb_results")


def number_of(table, model, metric):
    (found,) = (one for one in load_table(table).numbers if (one.model, one.metric) == (model, metric))
    return found


def run_of(model, tasks, *more, **ties):
    document = raw_run(model, tasks, *more, **ties)
    document["versions"] |= {task: 2 for task in tasks if task.startswith("sugarcrepe")}
    return [(Path("made_up.json"), ResultsDocument.model_validate(document))]


def test_the_list_has_every_table_and_its_number_of_rows(capsys):
    assert {name: len(load_table(name).numbers) for name in shipped_tables() if name.startswith("mteb_")} == TABLES
    assert main(["reproduce"]) == 0
    assert "_mteb" not in capsys.readouterr().out


def test_values_are_whole_counts_and_known_ones_are_here():
    for metric, correct in (("text_score", 125), ("image_score", 45), ("group_score", 36)):
        number = number_of("mteb_winoground", B32, metric)
        assert (number.value, number.of) == (correct / 400, 400)
    assert number_of("mteb_winoground", "google/siglip-base-patch16-224", "group_score").value == 41 / 400
    assert number_of("mteb_winoground", "openai/clip-vit-base-patch16", "group_score").value == 29 / 400
    for name in TABLES:
        for number in load_table(name).numbers:
            assert number.origin.file.startswith("mteb, ") and number.track == "zero_shot"
            assert (number.of is None) == number.metric.endswith("ndcg_at_10"), number


def test_the_numbers_are_those_of_the_files(script):
    if not SOURCE.is_file():
        pytest.skip("the results are not at hand")
    with SOURCE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == LISTED
    entries = {model: entry for name in TABLES for model, entry in load_table(name).spec.models.items()}
    names = {(row["model"], row["task"]): {} for row in rows}
    for row in rows:
        names[row["model"], row["task"]][row["metric"]] = row["value"]
    kept = []
    for row in rows:
        assert row["model"] in script.NOISE or entries[row["model"]].revision == row["model_revision"], row
        place = row["model"], row["task"]
        if not script.is_left_out(*place, row["metric"], names[place]):
            kept.append(tuple(script.line(*place, row["metric"], float(row["value"]))))
    shipped = []
    for name in TABLES:
        with load_table(name).csv.open(encoding="utf-8") as file:
            shipped += [tuple(row.values()) for row in csv.DictReader(file)]
    assert sorted(kept) == sorted(shipped)


def test_ties_and_another_commit_are_noted(registry):
    table = select(load_table("mteb_winoground"), [B32], [])
    pinned = run_of("clip-b32", {"winoground": (400, {"group_score": 0.09})}, ties=3)
    row = next(row for row in compare(table, pinned, registry) if row.number.metric == "group_score")
    assert row.ours.notes == (
        "3 ties, which are wrong here and may be correct in mteb",
        "mteb measured the model's commit 3d74acf, this run has c237dc4",
    )
    large = select(load_table("mteb_winoground"), ["openai/clip-vit-large-patch14"], [])
    for revision, notes in ((None, 0), ("32bd64288804d66eefd0ccbe215aa642df71cc41", 0), ("0123456789", 1)):
        args = {"pretrained": "openai/clip-vit-large-patch14", **({"revision": revision} if revision else {})}
        rows = compare(large, run_of("hf", {"winoground": (400, {"group_score": 0.0825})}, args), registry)
        (row,) = (row for row in rows if row.ours)
        assert (row.verdict, len(row.ours.notes)) == ("agrees", notes), "any commit is compared, another one noted"
    table = select(load_table("mteb_aro_coco_order"), ["google/siglip-base-patch16-224"], ["aro_coco_order"])
    value = table.numbers[0].value
    same = run_of("siglip-b16", {"aro_coco_order": (25010, {"text_score_ties_right": value})}, ties=9)
    (row,) = compare(table, same, registry)
    assert (row.verdict, row.ours.notes) == ("agrees", ()), "the same rule for ties, and the same commit"


def test_sugarcrepe_is_one_number_over_seven_tasks(registry):
    table = select(load_table("mteb_sugarcrepe"), [H14], [])
    (published,) = table.numbers
    sizes = {task: entry.groups for task, entry in table.spec.tasks.items() if entry.groups}
    args = table.spec.models[H14].model_args

    def verdict(correct):
        run = {task: (groups, {"text_score": correct[task] / groups}) for task, groups in sizes.items()}
        (row,) = compare(table, run_of("open_clip", run, args), registry)
        return row.verdict, round(row.ours.number.value * 7511)

    assert sum(sizes.values()) == published.of == 7511
    correct = {task: round(published.value * groups) for task, groups in sizes.items()}
    correct["sugarcrepe_add_obj"] += round(published.value * 7511) - sum(correct.values())
    for off, wanted in ((0, "agrees"), (22, "agrees"), (23, "differs"), (-22, "agrees"), (-23, "differs")):
        found, ours = verdict({**correct, "sugarcrepe_replace_obj": correct["sugarcrepe_replace_obj"] + off})
        assert (found, ours - round(published.value * 7511)) == (wanted, off)


def test_queries_of_retrieval_are_counted_each_way(registry):
    """Of 24,809 captions 7,643 find their image, of 5,000 images 2,529 a caption; 1.2 points of either may differ."""
    table = select(load_table("mteb_retrieval"), [B32], ["coco_retrieval"])
    for t2i, i2t, wanted in ((0.3081, 0.5058, "agrees"), (0.32, 0.4938, "agrees"), (0.3202, 0.4937, "differs")):
        run = run_of("clip-b32", {"coco_retrieval": (5000, {"t2i_recall_at_1": t2i, "i2t_recall_at_1": i2t})})
        rows = {row.number.metric: row for row in compare(table, run, registry)}
        assert {rows["t2i_recall_at_1"].verdict, rows["i2t_recall_at_1"].verdict} == {wanted}
        numbers = {name: row.number for name, row in rows.items() if row.ours}
        found = {name: (round(one.value * one.of), one.of) for name, one in numbers.items()}
        assert found == {"t2i_recall_at_1": (7643, 24809), "i2t_recall_at_1": (2529, 5000)}


def test_the_command_states_rules_and_counts(tmp_path, capsys):
    document = raw_run("clip-b32", {"winoground": (400, {"group_score": 0.08})})
    (tmp_path / "run.json").write_text(json.dumps(document), encoding="utf-8")
    words = ["reproduce", "mteb_winoground", "--models", "clip-b32", "--runs", str(tmp_path), "--allow_missing"]
    assert main([*words, "-o", str(tmp_path / "out.json")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mteb, ties: an argmax takes the first of equal scores" in out
    assert "9.00 8.00 agrees -1.00 1.00 400" in out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["tolerance"]["points"] == 1 and "ties" in written["rules"]
    (row,) = (row for row in written["rows"] if row["ours"])
    assert (row["number"]["of"], round(400 * row["ours"]["number"]["value"])) == (400, 32)
