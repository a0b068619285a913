"""The site of a leaderboard: what ranks, what is listed without a rank, links that hold, and texts that stay texts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest
from support.browser import column
from support.documents import PUBLISHED, method_record, schema, trained, write_run
from support.pages import Page

from ttmbench._util.file_io import file_digest
from ttmbench.cli import main
from ttmbench.report.board import HEADLINES, chance_levels
from ttmbench.results.numbers import Number

DAY = 86_400


def write(folder, name, model="m", date=1, value=0.5, task="t", names=("none",), groups=(1000, 1000), **more):
    """A results document with group match, and group score of the raw model."""
    return write_run(
        folder,
        name,
        {f"group_match,{one}": value for one in names} | {"group_score,none": value / 2},
        task,
        model_name=model,
        date=1.7e9 + date * DAY,
        groups=groups,
        packages={"ttmbench": "0.9.9", "numpy": "2"},
        **{
            "model_info": {"fingerprint": {"weights_sha256": f"{model}-weights"}},
            "methods": {task: {"ttm": trained(audit_labels={"passed": True, "compared": 1, "of": 1})}},
            "configs": {task: {"metrics": ["group_score", "group_match"], "description": "of <b>things</b>"}},
            **{"config": {"model": model, "tasks": [task]}, "command": "rm -rf /", **more},
        },
    )


def build(runs: Path, site: Path, *words: str) -> Path:
    assert main(["leaderboard", str(runs), "--site", str(site), *words]) == 0
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Runs of every standing, of three models on two tasks, and a published row."""
    runs = tmp_path_factory.mktemp("runs")
    write(runs, "a/old.json", model="alpha", date=1, value=0.4, names=("none", "ttm", "oracle"))
    write(runs, "a/new.json", model="alpha", date=2, value=0.6, names=("none", "ttm", "oracle"))
    write(runs, "b.json", model="beta", date=2, value=0.6)
    write(runs, "c.json", model="gamma", date=2, value=0.5, names=("none", "ttm"))
    write(runs, "part.json", model="part", date=3, value=1.0, groups=(4, 1000))
    write(runs, "version.json", model="older", date=3, value=0.9, version=0)
    write(runs, "other.json", model="elsewhere", date=3, value=0.8, data="other")
    write(runs, "u.json", model="alpha", date=2, value=0.7, task="u")
    (runs / "p.csv").write_text(PUBLISHED + "A paper,Table 1,t,theirs,simple_match,group_match,55,,zero_shot\n")
    return build(runs, tmp_path_factory.mktemp("site") / "out", "--published", str(runs / "p.csv"))


def rows_of_page(path: Path, table: str) -> list[list[str]]:
    """The cells of a table below its head."""
    return Page(path.read_text()).tables[f"{table}-table"][1:]


def test_ranks_are_of_whole_runs_on_one_version_and_one_data(site):
    assert [row[:3] for row in rows_of_page(site / "tasks" / "t.html", "matching")] == [
        ["1", "alpha SimpleMatch", "60.00 56.9–63.0"],
        ["1", "beta SimpleMatch", "60.00 56.9–63.0"],
        ["", "theirs SimpleMatch A paper, Table 1", "55.00"],
        ["3", "gamma SimpleMatch", "50.00 46.9–53.1"],
        ["", "part SimpleMatch part of the groups", "100.00 51.0–100.0"],
        ["", "older SimpleMatch other data or version", "90.00 88.0–91.7"],
        ["", "elsewhere SimpleMatch other data or version", "80.00 77.4–82.4"],
    ]
    table = (site / "tasks" / "t.html").read_text().partition('id="matching-table"')[2].partition("</table>")[0]
    assert re.findall(r'class="number best"[^>]*>([0-9.]+)', table) == ["60.00", "60.00"], "one of those that rank"


def test_the_oracle_stands_apart_without_ranks(site):
    task, start = site / "tasks" / "t.html", (site / "index.html").read_text()
    assert [row[:3] for row in rows_of_page(task, "oracle")] == [["", "alpha oracle", "60.00"]]
    assert 'id="oracle"' not in start and "oracle</td>" not in start
    assert [one[1] for one in rows_of_page(task, "test_time")] == ["alpha TTM", "gamma TTM"]


def test_the_start_page_has_tasks_by_models_for_each_track(site):
    page = site / "index.html"
    table = {row[1]: row[2:4] for row in rows_of_page(page, "matching")}
    assert table["alpha SimpleMatch"] == ["60.00 56.9–63.0", "70.00 67.1–72.8"] and table["beta SimpleMatch"][1] == "-"
    zero = {row[1]: [cell[:5] for cell in row[2:4]] for row in rows_of_page(page, "zero_shot")}
    assert zero["alpha"] == ["30.00", "35.00"], "the raw model is compared by its group score"
    raw, matching, adapted = "30.00 27.2–32.9 alpha", "60.00 56.9–63.0 alpha", "60.00 56.9–63.0 alpha, TTM"
    assert rows_of_page(page, "tasks")[0] == ["t", "1000", "-", raw, "-", matching, adapted, "-", "7"]


def test_every_number_has_its_run_or_source(site):
    page = (site / "models" / "alpha.html").read_text()
    (newest,) = [row for row in rows_of_page(site / "models" / "alpha.html", "matching") if row[0] == "t"]
    assert newest[:4] == ["t", "group match", "SimpleMatch", "60.00"] and newest[-2:] == ["2023-11-16", "1"]
    assert "40.00" not in page, "the newest run counts"
    assert page.count("ttmbench --model alpha --tasks t</code>") == 2 and "alpha-weights" in page
    assert "<dd>passed on t</dd>" in page and "ttmbench 0.9.9, numpy 2" in page and "rm -rf" not in page
    (row,) = rows_of_page(site / "models" / "theirs.html", "matching")
    assert row == ["t", "group match", "SimpleMatch", "55.00", *"----", "-", "-", "", "A paper, Table 1"]
    names = [row[0] for row in rows_of_page(site / "models.html", "models")]
    assert names == ["alpha", "beta", "elsewhere", "gamma", "older", "part", "theirs"], "those with runs first"


def test_every_link_leads_somewhere(site):
    found = {page.resolve(): Page(page.read_text()) for page in site.rglob("*.html")}
    assert len(found) == 2 + 2 + 7
    for page, one in found.items():
        assert "default-src &#39;none&#39;" in page.read_text()
        for link in one.links:
            name, _, place = unquote(link).partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.is_file() and target.is_relative_to(site.resolve()), (page.name, link)
            assert not place or place in found[target].ids, (page.name, link)
    assert "../models/theirs.html" in found[(site / "tasks" / "t.html").resolve()].links


def test_downloads(site):
    document = json.loads((site / "data" / "leaderboard.json").read_text())
    jsonschema.Draft202012Validator(schema("leaderboard")).validate(document)
    assert len((site / "data" / "leaderboard.csv").read_text().splitlines()) == 1 + len(document["rows"])
    copies = {json.loads(path.read_text())["model_name"] for path in (site / "data" / "runs").iterdir()}
    assert copies == {"alpha", "beta", "gamma", "part", "older", "elsewhere"}
    assert (site / ".nojekyll").is_file()


def with_samples(folder: Path, model: str, right: dict[str, int], groups: int, **more) -> None:
    """A run with group match under some methods, and its samples: so many of the first groups are right."""
    lines = [
        {"group_id": str(at), "method": name, "metrics": {"group_match": float(at < count)}}
        for name, count in right.items()
        for at in range(groups)
    ]
    name = f"samples_{model}.jsonl"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_run(
        folder,
        f"{model}.json",
        {f"group_match,{name}": count / groups for name, count in right.items()},
        groups=(groups, groups),
        model_name=f"<{model}>",
        methods={"t": {name: method_record() for name in right if name != "none"}},
        artifacts={name: {"kind": "samples", "sha256": file_digest(folder / name), "bytes": 1, "task": "t"}},
        **more,
    )


def test_ranks_are_shared_where_no_test_tells_rows_apart(tmp_path):
    """Intervals of 400 groups overlap for 60 and 64 %, and a paired test tells 60 and 64 % of the same groups apart."""
    runs = tmp_path / "runs"
    for name, right in {"a": 280, "b": 256, "c": 240, "d": 200}.items():
        with_samples(runs, name, {"none": right}, 400)

    def ranks(site: str) -> list[str]:
        return [row[0] for row in rows_of_page(build(runs, tmp_path / site) / "tasks" / "t.html", "matching")]

    for name in "ad":
        (runs / f"samples_{name}.jsonl").unlink()
    assert ranks("some") == ["1", "1", "3", "4"]
    (runs / "samples_b.jsonl").unlink()
    assert ranks("none") == ["1", "1", "2", "4"]


def test_methods_are_compared_by_gain_and_cost(tmp_path):
    right = {"none": 100, "ttm": 150, "dn": 100, "zero": 140, "oracle": 190, "tent": 104, "tps": 110}
    with_samples(tmp_path / "runs", "m", right, 200)
    published = PUBLISHED + "p,T,t,m,simple_match,group_match,55,,zero_shot\np,T,t,m,ttm,group_match,60,,zero_shot\n"
    (tmp_path / "p.csv").write_text(published)
    page = build(tmp_path / "runs", tmp_path / "site", "--published", str(tmp_path / "p.csv")) / "methods.html"
    table = [row[:9] for row in rows_of_page(page, "methods")]
    assert table[0][:6] == ["", "oracle uses labels", "t", "<m>", "95.00", "+45.00"]
    assert [row[:2] for row in table[1:6]] == [["1", "TTM"], ["2", "zero"], ["3", "tps"], ["4", "tent"], ["4", "dn"]]
    low, high = (float(end) for end in re.findall(r"[+-][0-9.]+", table[1][6]))
    assert table[1][4:6] == ["75.00", "+25.00"] and 15 < low < 25 < high < 35 and table[1][7:] == ["4.0", "0.1"]
    assert table[5][5] == "0.00" and table[-1][:6] == ["", "TTM published", "t", "m", "60.00", "+5.00"]


def test_runs_and_published_rows_of_a_method_are_ranked_together(tmp_path):
    runs, common = tmp_path / "runs", {"model": "siglip-b16", "task": "winoground", "groups": (400, 400)}
    record = trained(cost=method_record()["cost"])
    for at, seeds in enumerate(([0, 1], [2, 3])):
        about = {"methods": {"winoground": {"ttm": record | {"seeds": seeds}}}, "date": at, "value": 0.5 + 0.1 * at}
        write(runs, f"{at}.json", **common, names=("none", "ttm"), **about)
    site = build(runs, tmp_path / "site", "--published", "ttm_table1")
    rows = [row for row in rows_of_page(site / "methods.html", "methods") if row[2:4] == ["winoground", "siglip-b16"]]
    assert [row[:2] + row[4:5] for row in rows] == [["1", "TTM published", "72.50"], ["2", "TTM", "55.00"]]
    assert [row[0] for row in rows_of_page(site / "index.html", "headline")[:3]] == ["1", "1", "3"]


def test_settings_of_a_model_share_its_page_and_its_raw_rows(tmp_path):
    for at, rate in enumerate((0.1, 0.2)):
        record = trained(cost=method_record()["cost"], settings={"tau_end": 0, "lr": rate})
        about = {"methods": {"winoground": {"ttm": record}}, "task": "winoground", "value": 0.5 + rate}
        write(tmp_path / "runs", f"{at}.json", names=("none", "ttm"), date=at, **about)
    site = build(tmp_path / "runs", tmp_path / "site")
    assert [path.name for path in (site / "models").iterdir()] == ["m.html"]
    ranks = sorted(row[:2] for row in rows_of_page(site / "methods.html", "methods"))
    assert ranks == [["1", "TTM [lr=0.2]"], ["2", "TTM [lr=0.1]"]]
    names = [row[1] for row in rows_of_page(site / "index.html", "headline")]
    assert names == ["m [lr=0.2]", "m [lr=0.1]", "m"], "raw and SimpleMatch have one row"
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html")]) == 0
    report = (tmp_path / "report.html").read_text()
    assert "2 runs, 1 model, 1 task" in report and '<option value="m">' in report
    assert set(re.findall(r'data-model="([^"]*)" data-metric', report)) == {"m"}, "one choice finds all its rows"


def test_the_first_table_has_raw_simplematch_and_ttm(tmp_path):
    runs = tmp_path / "runs"
    write(runs, "w.json", task="winoground", names=("none", "ttm"), value=0.6)
    for at, name in enumerate(HEADLINES["sugarcrepe"]):
        numbers = {"text_score,none": at / 10, "group_match,none": at / 10}
        tracks = {name: {"text_score,none": "zero_shot", "group_match,none": "matching"}}
        about = {"task": name, "groups": (100 + at, 100 + at), "model_name": "m", "tracks": tracks}
        write_run(runs, f"{at}.json", numbers, **about, model_info={"fingerprint": {"weights_sha256": "m-weights"}})
    write_run(runs, "text.json", {"text_score,none": 0.5}, "text", chance={"text": {"text_score": 0.25}})
    write(runs, "toy.json", model="drawn", task="drawn", configs={"drawn": {"source": {"kind": "rendered"}}})
    site = build(runs, tmp_path / "site")
    page = Page((site / "index.html").read_text())
    head, *rows = page.tables["headline-table"]
    (row,) = [dict(zip(head, row, strict=True)) for row in rows if row[1] == "m"]
    assert [row[f"{name} chance -"] for name in ("winoground raw", "winoground SimpleMatch", "winoground TTM")] == [
        *("30.00 27.2–32.9", "60.00 56.9–63.0", "60.00 56.9–63.0")
    ]
    pooled = 10 * sum(at * (100 + at) for at in range(7)) / sum(100 + at for at in range(7))
    assert row["sugarcrepe raw chance -"].startswith(f"{pooled:.2f} "), "over all groups together"
    of_text = next(row for row in rows_of_page(site / "index.html", "tasks") if row[0] == "text")
    assert of_text[4:8] == ["25.00", "-", "-", "-"], "without a matching there is no chance level of it"
    assert "drawn" not in page.text and "drawn" in Page((site / "builtin.html").read_text()).text


def test_texts_from_documents_are_never_code(tmp_path):
    evil = '"><script>alert(1)</script>{{ 7*7 }}'
    path = write(tmp_path / "runs", "x.json", model=f"../../{evil}", task="t")
    document = json.loads(path.read_text().replace('"t"', json.dumps(f"../{evil}")))
    document["configs"][f"../{evil}"] |= {"reference": "javascript:alert(1)", "description": evil, "license": evil}
    document["command"] = document["git_hash"] = evil
    path.write_text(json.dumps(document))
    site = build(tmp_path / "runs", tmp_path / "site")
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert (
            "<script>alert" not in text and "javascript:" not in text and page.resolve().is_relative_to(site.resolve())
        )
        assert text.count("<script>") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "site"}


def test_a_site_is_renewed_and_nothing_else_is_overwritten(tmp_path, capsys):
    runs, site = tmp_path / "runs", tmp_path / "site"
    gone = write(runs, "a.json", model="a")
    write(runs, "b.json", model="b")
    build(runs, site)
    assert (site / "models" / "a.html").is_file()
    gone.unlink()
    build(runs, site)
    assert not (site / "models" / "a.html").exists() and {one.name for one in (site / "data/runs").iterdir()} == {
        "b.json"
    }
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    for place, why in ((other, "has other files"), (runs / "site", "must neither contain"),
                       (tmp_path, "must neither contain"), (other / "mine.txt", "is a file")):  # fmt: skip
        capsys.readouterr()
        assert main(["leaderboard", str(runs), "--site", str(place)]) == 2
        assert why in capsys.readouterr().err
    assert main(["leaderboard", str(runs), "--site", str(site), "-o", str(other)]) == 2


@pytest.fixture
def start(opened, site):
    with opened(site / "index.html", root=site) as page:
        yield page


def test_filters_search_and_sorted_columns(start):
    matching = "section:has(> #matching) table"
    form = start.locator("form.filters")
    form.locator("[name=standing]").select_option("published")
    assert [name.split()[0] for name in column(start, matching, 2)] == ["theirs"]
    assert start.locator("#test_time").is_hidden() and start.url.endswith("index.html#standing=published")
    form.locator("[name=standing]").select_option("")
    form.locator("[name=task]").select_option("u")
    assert start.locator(f"{matching} th[data-task=t]").is_hidden()
    assert column(start, matching, 2) == ["alpha SimpleMatch"], "rows without a number in it go"
    form.locator("[name=task]").select_option("")
    form.locator("[name=text]").fill("gam")
    assert column(start, matching, 2) == ["gamma SimpleMatch"]
    form.locator("[name=text]").fill("")
    assert start.url.endswith("index.html"), "no filter, no state"
    start.locator(f"{matching} th[data-task=t] button").click()
    assert start.locator(f"{matching} th[data-task=t]").get_attribute("aria-sort") == "ascending"
    start.locator(f"{matching} th[data-task=t] button").click()
    values = [text[:5] for text in column(start, matching, 3)]
    assert values[:4] == ["60.00", "60.00", "55.00", "50.00"] and values[4:6] == ["100.0", "90.00"]
    assert start.url.endswith("#sort=matching-table%3At%3Adown")


def test_filters_and_order_are_restored_from_the_address(opened, site, start):
    start.goto((site / "index.html").as_uri() + "#text=alpha&sort=matching-table:u:down&standing=nonsense")
    start.reload()
    assert start.locator("form.filters [name=standing]").input_value() == ""
    assert start.locator("form.filters output").inner_text().startswith("3 of ")
    matching = "section:has(> #matching) table"
    assert column(start, matching, 2) == ["alpha SimpleMatch"] and column(start, matching, 1) == ["1"], (
        "ranks of the column"
    )
    assert start.locator(f"{matching} th[data-task=u]").get_attribute("aria-sort") == "descending"
    start.evaluate("location.hash = 'text=beta'")
    start.wait_for_function("document.querySelector('form.filters [name=text]').value === 'beta'")
    assert column(start, matching, 2) == ["beta SimpleMatch"]


def test_the_rows_shown_are_plotted_and_saved(opened, tmp_path):
    for at, name in enumerate("abcdef"):
        info = {"fingerprint": {"weights_sha256": name, **({"n_parameters": 10 ** (6 + at)} if at else {})}}
        write(tmp_path / "runs", f"{at}.json", model=f"x_{name}", value=0.9 - 0.1 * at, model_info=info)
    site, texts = build(tmp_path / "runs", tmp_path / "site"), list[list[str]]()
    with opened(site / "index.html", root=site) as page:
        figure, box = (page.locator(f"section:has(> #matching) {name}") for name in (".plot[data-over=size]", ".cite"))
        assert figure.locator("circle").count() == 5
        assert figure.locator("figcaption").inner_text().endswith("1 of 6 models not shown: size unknown.")
        page.locator("form.filters [name=text]").fill("x_b")
        assert figure.is_hidden()
        box.locator("summary").click()
        assert box.locator("a").inner_text() == f"{(site / 'index.html').as_uri()}#text=x_b&table=matching"
        for kind in ("csv", "tex"):
            with page.expect_download() as download:
                box.locator(f"[data-save={kind}]").click()
            assert download.value.suggested_filename == f"index-matching.{kind}"
            texts.append(download.value.path().read_text("utf-8").splitlines())
    assert texts[0] == ["rank,model,t group match,parameters", "2,x_b SimpleMatch,80.00,10M"]
    assert texts[1][:2] == ["\\begin{tabular}{llrr}", "\\toprule"]
    assert texts[1][4] == "2 & x\\_b SimpleMatch & 80.00 & 10M \\\\"


def test_the_chance_level_in_a_head_is_that_of_random_scores():
    def row(method: str, chance: float | None) -> Number:
        return Number("t", "m", method, 0.5, track="test_time", chance=chance)

    assert chance_levels([row("tent", 0.3), row("zero", 0.3), row("ttm", 0.2), row("mine", None)]) == {"m": 0.2}
    assert chance_levels([row("tent", 0.3), row("zero", 0.4), row("mta", 0.4)]) == {"m": 0.4}
