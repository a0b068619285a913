"""Published numbers beside runs: in the track that their table states, each with its source, and none merged."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from support.documents import schema, whole_document

from ttmbench.cli import main
from ttmbench.errors import DataError
from ttmbench.report.board import answer_of, as_document, merge
from ttmbench.report.load import gather
from ttmbench.reproduce.tables import load_table, published_beside_runs, shipped_tables, under_names_of_runs
from ttmbench.results.document import ResultsDocument

HEAD = "source,table,task,model,method,metric,percent,std_percent,track\n"
NAMED = (
    (r"finetuned|negclip|trohn|^dac|^sv?lv?c|crepe-|, our |^ce-clip|^clove|^tsvlc", "supervised"),
    (r"^gnm-clip|^fsc|conclip|negfull", "supervised"),
    (r"\(choice\)|prompt tuning", "forced_choice"),
    (r"^human$|^random chance$", "no_model"),
    (r"alpha\*$", "supervised"),
)
"""What a paper's name of a model says -> the track that its entry must state."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A scorer and a model that chooses, on two tasks of 2x2 groups."""
    folder = tmp_path_factory.mktemp("runs")
    for name, method, chance in (("scorer", "none", 1 / 6), ("chooser", "choice", 0.0625)):
        keys = {task: {f"group_score,{method}": 0.3} for task in ("colorswap", "winoground")}
        track = "forced_choice" if method == "choice" else "zero_shot"
        document = whole_document(
            keys,
            tracks={task: dict.fromkeys(one, track) for task, one in keys.items()},
            chance={task: {"group_score": chance} for task in keys},
            model_name=name,
        )
        for about in document["datasets"].values():
            about["shape"] = [2, 2]
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def rows_of(board, model, task="colorswap", metric="group_score"):
    return [row for row in board.rows if (row.model, row.task, row.metric) == (model, task, metric)]


def test_every_shipped_table_states_the_tracks_that_its_names_imply():
    wrong = []
    for name in shipped_tables():
        for model, entry in load_table(name).spec.models.items():
            implied = next((track for pattern, track in NAMED if re.search(pattern, model)), "zero_shot")
            pevl = model in ("pevl-grounding", "pevl-vrd", "clip_coco", "gnm")  # the name does not say it
            trained = re.match(r"(structure-clip|syvic|sgvl|mosaiclip)", model)
            if entry.track != ("supervised" if pevl or trained else implied):
                wrong.append((name, model, entry.track))
    assert not wrong


def test_finetuned_models_and_forced_choices_stand_in_their_own_tracks(runs):
    board = merge(runs, published_beside_runs(["all"]).numbers)
    (finetuned,) = rows_of(board, "blip (itm), finetuned")
    assert (finetuned.value, finetuned.track) == (pytest.approx(0.9533), "supervised")
    (chosen,) = rows_of(board, "gpt-4v (choice)")
    assert (chosen.value, chosen.track, chosen.column) == (pytest.approx(0.72), "forced_choice", "forced choice")
    assert chosen.chance == 0.0625
    (people,) = {(row.value, row.track) for row in rows_of(board, "human", "winoground")}
    assert people == (pytest.approx(0.855), "no_model")
    (chooser,) = rows_of(board, "chooser")
    assert chooser.track == "forced_choice"
    zero_shot = {row.model for row in board.rows if row.track == "zero_shot"}
    assert not [name for name in zero_shot if re.search(r"finetuned|\(choice\)|^human|chooser", name)]
    jsonschema.Draft202012Validator(schema("leaderboard")).validate(as_document(board))


def ranked_tables(page):
    """For each table of a page the level of its chance row, and the bold numbers, by column; and how many rows rank."""
    for table in re.findall(r'<table class="sortable" id="(?!tasks)[a-z_]+-table">.*?</table>', page.read_text(), re.S):
        chance, bold, ranked = {}, [], 0
        for _, row in re.findall(r"<tr([^>]*)>(.*?)</tr>", table.partition("<tbody>")[2], re.S):
            cells = list(enumerate(re.findall(r'<td class="([a-z ]*)" data-value=?"?([0-9.e-]*)', row)))
            if "<bdi>random chance</bdi>" in row:
                chance = {at: float(value) for at, (_, value) in cells if value}
            bold += [(at, float(value)) for at, (name, value) in cells if name == "number best"]
            ranked += cells[0][1][1] != ""
        yield chance, bold, ranked


@pytest.mark.slow
def test_every_published_task_has_a_page_with_chance_and_nothing_below_it_is_bold(runs, tmp_path):
    site = tmp_path / "site"
    assert main(["leaderboard", str(runs), "--published", "all", "--site", str(site)]) == 0
    published = {number.task for number in published_beside_runs(["all"]).numbers}
    pages = sorted((site / "tasks").iterdir())
    assert len(pages) == len(published) > 90
    bold = ranked = 0
    for page in [*pages, site / "index.html", site / "1xk.html"]:
        for levels, best, ranks in ranked_tables(page):
            if not page.name.startswith("hard_positives"):  # of their brittleness the smallest is best
                assert all(value > levels.get(at, 0.0) for at, value in best), page.name
            assert levels or not ranks or "global" in page.name, page.name
            bold, ranked = bold + len(best), ranked + ranks
    assert bold > 200 and ranked > 1000


def test_humans_sources_and_documents_are_linked(runs, tmp_path):
    tables = ["--published", "winoground_main,mteb_winoground"]
    assert main(["leaderboard", str(runs), *tables, "--site", str(tmp_path / "site"), "--docs", ".."]) == 0
    page = (tmp_path / "site" / "tasks" / "winoground.html").read_text()
    row = r'<tr class="reference">\s*<td class="rank"[^>]*></td>\s*<th[^>]*><bdi>human</bdi>.*?</tr>'
    human = re.search(row, page, re.S)
    assert human and "85.50" in human.group() and 'href="https://arxiv.org/abs/2204.03162"' in human.group()
    assert 'href="../../index.html"' in page
    sources = page.partition('<h2 id="sources">')[2]
    assert "github.com/embeddings-benchmark/results/tree/" in sources and "Ties: an argmax takes the first" in sources


def test_the_report_names_the_track_and_gives_the_chance_of_choices(runs):
    rows = {(row.task, row.model): row for row in answer_of(gather(runs)[0], published_beside_runs(["all"]).numbers)}
    assert rows["colorswap", "blip (itm), finetuned (supervised)"].raw.chance == pytest.approx(1 / 6)
    assert rows["colorswap", "gpt-4v (choice) (forced choice)"].raw.chance == 0.0625
    assert rows["colorswap", "chooser (forced choice)"].raw.chance == 0.0625
    assert rows["winoground", "human (no model)"].raw.value == pytest.approx(0.855)
    assert rows["colorswap", "siglip-b16"].raw.chance == pytest.approx(1 / 6), "whatever the other run's chance is"


def test_two_values_of_one_model_stay_two_and_are_marked(runs, capsys):
    """Sources call clip-b32 by three names, and blip (itm) by one name two models."""
    tables = ["winoground_main", "colorswap_table4", "visualgptscore_table11"]
    board = merge(runs, published_beside_runs(tables).numbers)
    found = {row.origin.file: row for row in rows_of(board, "clip-b32", "winoground")}
    assert {file: (round(100 * row.value, 2), row.origin.published_as) for file, row in found.items()} == {
        "arXiv:2402.04492, Table 4": (9.0, "clip (itc)"),
        "arXiv:2204.03162, main table": (8.0, "clip-b32 (itc)"),
    }
    assert found["arXiv:2402.04492, Table 4"].origin.disagrees == "8.0 in arXiv:2204.03162, main table"
    others = [row for name in ("blip-itm", "blip (itm)") for row in rows_of(board, name, "winoground")]
    assert not any(row.origin.disagrees for row in others)
    assert main(["leaderboard", str(runs), "--published", "all"]) == 0
    shown = capsys.readouterr().out
    assert re.search("clip-b32 +raw +9.00‡", shown) and "‡ sources disagree" in shown
    assert re.search(r"published values: \d+ disagree with another source and are marked", shown)


def test_a_repository_has_the_name_of_its_run(tmp_path):
    """A run with further arguments is another model."""
    repository = "openai/clip-vit-large-patch14"
    for name, arguments in (("clip-l", {}), ("other", {"dtype": "float16"})):
        document = whole_document(
            {"winoground": {"group_score,none": 0.1}},
            model_name=name,
            config={"model": "hf", "model_args": {"pretrained": repository, **arguments}},
            model_info={"fingerprint": {"weights_sha256": name}},
            tracks={"winoground": {"group_score,none": "zero_shot"}},
        )
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    published = published_beside_runs(["mteb_winoground"])
    board, named = under_names_of_runs(merge(tmp_path, published.numbers), published)
    rows = (row for row in board.rows if row.model in ("clip-l", "other"))
    found = {(row.model, row.origin.published, row.origin.published_as) for row in rows}
    assert found == {("clip-l", False, ""), ("clip-l", True, repository), ("other", False, "")}
    assert named.parameters["clip-l"] == published.parameters[repository]


def test_what_is_printed_to_fewer_digits_does_not_disagree(tmp_path):
    rows = "a,T,t,m,raw,x,8.0,,zero_shot\nb,T,t,m,raw,x,8.04,,zero_shot\nc,T,t,m,raw,x,8.2,,zero_shot\n"
    (tmp_path / "p.csv").write_text(HEAD + rows)
    found = {one.origin.file: one.origin.disagrees for one in published_beside_runs([str(tmp_path / "p.csv")]).numbers}
    assert found == {"a, T": "8.2 in c, T", "b, T": "8.2 in c, T", "c, T": "8.0 in a, T; 8.04 in b, T"}
    twice = published_beside_runs(["winoground_main", "winoground_main"]).numbers
    assert len(twice) == 9 and not any(one.origin.disagrees for one in twice)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("s,T,t,m,raw,x,1,,\n", "line 2: the column 'track' must be one of"),
        ("s,T,t,m,raw,x,1,,oracle\n", "line 2: the column 'track' must be one of"),
        ("s,T,t,m,ttm,x,1,,no_model\n", "line 2: model 'm' has the track no_model"),
    ],
)
def test_a_csv_states_the_track_of_each_line(tmp_path, row, message):
    (tmp_path / "p.csv").write_text(HEAD + row)
    with pytest.raises(DataError, match=message):
        published_beside_runs([str(tmp_path / "p.csv")])


def test_a_finetuned_model_that_chooses_stays_supervised():
    document = whole_document({"t": {"group_score,choice": 0.3}}, tracks={"t": {"group_score,choice": "supervised"}})
    assert [one.track for one in ResultsDocument.model_validate(document).numbers] == ["supervised"]
