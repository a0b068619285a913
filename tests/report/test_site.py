"""The site of a leaderboard: what ranks, what only stands beside it, links that hold, and texts that stay texts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest
from support.browser import column
from support.documents import PUBLISHED, method_record, trained, whole_document, write_run

from ttmbench.cli import main
from ttmbench.report.leaderboard import BoardLine, GroupValues, chance_levels, with_ranks
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import Extent, Number, Origin
from ttmbench.results.reader import ResultsFile
from ttmbench.results.stored_files import schema

DAY = 86_400


def write(folder, name, model="m", date=1, value=0.5, task="t", methods=("none",), groups=(1000, 1000), **more):
    """A results document with group match, and group score of the raw model."""
    return write_run(
        folder,
        name,
        {f"group_match,{one}": value for one in methods} | {"group_score,none": value / 2},
        task,
        model_name=model,
        model_info={"fingerprint": {"weights_sha256": f"{model}-weights"}},
        date=1.7e9 + date * DAY,
        groups=groups,
        methods={task: {"ttm": trained(audit_labels={"passed": True, "compared": 1, "of": 1})}},
        configs={task: {"metrics": ["group_score", "group_match"], "description": "of <b>things</b>"}},
        packages={"ttmbench": "0.9.9", "numpy": "2"},
        **{"config": {"model": model, "tasks": [task]}, "command": "rm -rf /", **more},
    )


def build(runs: Path, site: Path, *words: str) -> Path:
    assert main(["leaderboard", str(runs), "--site", str(site), *words]) == 0
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Runs of every standing, of three models on two tasks, and a published row."""
    runs = tmp_path_factory.mktemp("runs")
    write(runs, "a/old.json", model="alpha", date=1, value=0.4, methods=("none", "ttm", "oracle"))
    write(runs, "a/new.json", model="alpha", date=2, value=0.6, methods=("none", "ttm", "oracle"))
    write(runs, "b.json", model="beta", date=2, value=0.6)
    write(runs, "c.json", model="gamma", date=2, value=0.5, methods=("none", "ttm"))
    write(runs, "part.json", model="part", date=3, value=1.0, groups=(4, 1000))
    write(runs, "version.json", model="older", date=3, value=0.9, version=0)
    write(runs, "other.json", model="elsewhere", date=3, value=0.8, data="other")
    write(runs, "u.json", model="alpha", date=2, value=0.7, task="u")
    (runs / "p.csv").write_text(PUBLISHED + "A paper,Table 1,t,theirs,simple_match,group_match,55,,zero_shot\n")
    return build(runs, tmp_path_factory.mktemp("site") / "out", "--published", str(runs / "p.csv"))


class Links(HTMLParser):
    """Where a page points to, its ids, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        if known.get("id"):
            self.ids.add(known["id"])
        if tag == "a" and "href" in known:
            self.links.append(known["href"])
        elif known.get("src") or (tag == "link" and known.get("href") != "data:,"):
            self.loads.append(str(known))


def rows_of_page(page: str, track: str) -> list[list[str]]:
    """The cells of the table of a track."""
    table = re.search(rf'<table class="sortable" id="{track}-table">.*?</table>', page, re.S)
    assert table, track
    body = table.group().partition("<tbody>")[2]
    return [
        [" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr.*?</tr>", body, re.S)
    ]


def test_ranks_are_of_whole_runs_on_one_version_and_one_data(site):
    page = (site / "tasks" / "t.html").read_text()
    assert [row[:3] for row in rows_of_page(page, "matching")] == [
        ["1", "alpha SimpleMatch", "60.00 56.9–63.0"],
        ["1", "beta SimpleMatch", "60.00 56.9–63.0"],
        ["", "theirs SimpleMatch A paper, Table 1", "55.00"],
        ["3", "gamma SimpleMatch", "50.00 46.9–53.1"],
        ["", "part SimpleMatch part of the groups", "100.00 51.0–100.0"],
        ["", "older SimpleMatch other data or version", "90.00 88.0–91.7"],
        ["", "elsewhere SimpleMatch other data or version", "80.00 77.4–82.4"],
    ]
    table = page.partition('id="matching-table"')[2].partition("</table>")[0]
    assert re.findall(r'class="number best"[^>]*>([0-9.]+)', table) == ["60.00", "60.00"], "one of those that rank"


def test_the_oracle_stands_apart_without_ranks(site):
    task, start = (site / "tasks" / "t.html").read_text(), (site / "index.html").read_text()
    (row,) = rows_of_page(task, "oracle")
    assert row[:3] == ["", "alpha oracle", "60.00"]
    assert 'id="oracle"' not in start and "oracle</td>" not in start
    assert [one[1] for one in rows_of_page(task, "test_time")] == ["alpha TTM", "gamma TTM"]


def test_the_start_page_has_tasks_by_models_for_each_track(site):
    page = (site / "index.html").read_text()
    table = {row[1]: row[2:4] for row in rows_of_page(page, "matching")}
    assert table["alpha SimpleMatch"] == ["60.00 56.9–63.0", "70.00 67.1–72.8"] and table["beta SimpleMatch"][1] == "-"
    zero = {row[1]: [cell[:5] for cell in row[2:4]] for row in rows_of_page(page, "zero_shot")}
    assert zero["alpha"] == ["30.00", "35.00"], "the raw model is compared by its group score"
    tasks = rows_of_page(page, "tasks")
    assert tasks[0] == [
        "t",
        "1000",
        "-",
        "-",
        "30.00 27.2–32.9 alpha",
        "60.00 56.9–63.0 alpha",
        "60.00 56.9–63.0 alpha, TTM",
        "7",
    ]


def test_every_number_has_its_run(site):
    page = (site / "models" / "alpha.html").read_text()
    (newest,) = [row for row in rows_of_page(page, "matching") if row[0] == "t"]
    assert newest[:4] == ["t", "group match", "SimpleMatch", "60.00"] and newest[-2:] == ["2023-11-16", "1"]
    assert "40.00" not in page, "the newest run counts"
    assert page.count("ttmbench --model alpha --tasks t</code>") == 2 and "alpha-weights" in page
    assert "<dd>passed on t</dd>" in page and "ttmbench 0.9.9, numpy 2" in page and "rm -rf" not in page


def test_a_model_without_runs_has_a_page_of_published_numbers(site):
    (row,) = rows_of_page((site / "models" / "theirs.html").read_text(), "matching")
    assert row == ["t", "group match", "SimpleMatch", "55.00", *"----", "-", "-", "", "A paper, Table 1"]
    for page in ("tasks/t.html", "index.html", "models.html"):
        assert 'models/theirs.html"><bdi>theirs</bdi></a>' in (site / page).read_text(), page
    names = [row[0] for row in rows_of_page((site / "models.html").read_text(), "models")]
    assert names == ["alpha", "beta", "elsewhere", "gamma", "older", "part", "theirs"], "those with runs first"


def test_every_link_leads_somewhere_and_nothing_is_loaded(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) == 2 + 2 + 7
    found = {page.resolve(): Links(page.read_text()) for page in pages}
    for page, one in found.items():
        assert not one.loads and "default-src &#39;none&#39;" in page.read_text()
        assert not re.search(r"(?:href|src)=[\"']?(?:/|https?:)", page.read_text()), "no source here has an address"
        for link in one.links:
            name, _, place = unquote(link).partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.is_file() and target.is_relative_to(site.resolve()), (page.name, link)
            assert not place or place in found[target].ids, (page.name, link)


def test_downloads(site):
    document = json.loads((site / "data" / "leaderboard.json").read_text())
    jsonschema.Draft202012Validator(schema("leaderboard")).validate(document)
    lines = (site / "data" / "leaderboard.csv").read_text().splitlines()
    assert len(lines) == 1 + len(document["rows"])
    copies = {json.loads(path.read_text())["model_name"] for path in (site / "data" / "runs").iterdir()}
    assert copies == {"alpha", "beta", "gamma", "part", "older", "elsewhere"}
    assert (site / ".nojekyll").is_file()


def number(value, groups=400, **more):
    return Number("t", "group_match", "none", value, track="matching", extent=Extent(groups, groups), **more)


def test_ranks_are_shared_where_no_test_tells_rows_apart(tmp_path):
    """Intervals of 400 groups overlap for 60 and 64 %, and a paired test tells 60 and 64 % of the same groups apart."""
    values = {"a": 0.7, "b": 0.64, "c": 0.6, "d": 0.5}
    lines = [BoardLine(name, "", "run", {"x": number(value, origin=Origin(name))}) for name, value in values.items()]
    assert [line.ranks["x"] for line in with_ranks(lines)] == [1, 1, 2, 4]
    assert [line.ranks for line in with_ranks([BoardLine("a", "", "run", {"x": number(0.7, None)})])] == [{}]
    for name in ("b", "c"):
        right = round(400 * values[name])
        lines_of_run = [
            json.dumps({"group_id": str(at), "method": "none", "metrics": {"group_match": float(at < right)}})
            for at in range(400)
        ]
        (tmp_path / f"samples_{name}.jsonl").write_text("\n".join(lines_of_run) + "\n")
    runs = [
        ResultsFile(
            tmp_path / name,
            ResultsDocument.of(
                whole_document(
                    {"t": {"group_match,none": values[name]}},
                    artifacts={
                        f"samples_{name}.jsonl": {"kind": "samples", "task": "t", "sha256": "0" * 64, "bytes": 1}
                    },
                )
            ),
            name,
        )
        for name in ("b", "c")
    ]
    samples = GroupValues(runs)
    assert samples.p_value(lines[1].any, lines[2].any) < 0.05 and samples.p_value(lines[0].any, lines[1].any) is None
    assert [line.ranks["x"] for line in with_ranks(lines, samples)] == [1, 1, 3, 4]


def test_methods_are_compared_by_gain_and_cost(tmp_path):
    right = {"none": 100, "ttm": 150, "dn": 100, "zero": 140, "oracle": 190, "tent": 104, "tps": 110}
    lines = [
        {"group_id": str(at), "method": name, "metrics": {"group_match": float(at < count)}}
        for name, count in right.items()
        for at in range(200)
    ]
    path = write_run(
        tmp_path / "runs",
        "a.json",
        {f"group_match,{name}": count / 200 for name, count in right.items()},
        model_name="<m>",
        methods={"t": {name: method_record() for name in right if name != "none"}},
        artifacts={"samples_t_2.jsonl": {"kind": "samples", "sha256": "0" * 64, "bytes": 1, "task": "t"}},
    )
    (path.parent / "samples_t_2.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    published = PUBLISHED + "p,T,t,m,simple_match,group_match,55,,zero_shot\np,T,t,m,ttm,group_match,60,,zero_shot\n"
    (tmp_path / "p.csv").write_text(published)
    page = build(tmp_path / "runs", tmp_path / "site", "--published", str(tmp_path / "p.csv")) / "methods.html"
    table = [row[:9] for row in rows_of_page(page.read_text(), "methods")]
    assert table[0][:6] == ["", "oracle uses labels", "t", "&lt;m&gt;", "95.00", "+45.00"]
    assert [row[:2] for row in table[1:6]] == [["1", "TTM"], ["1", "zero"], ["3", "tps"], ["3", "tent"], ["5", "dn"]]
    low, high = (float(end) for end in re.findall(r"[+-][0-9.]+", table[1][6]))
    assert table[1][4:6] == ["75.00", "+25.00"] and 15 < low < 25 < high < 35 and table[1][7:] == ["4.0", "0.1"]
    assert table[-1][:6] == ["", "TTM published", "t", "m", "60.00", "+5.00"]
    assert page.read_text().count('<img class="chart" alt="gain of 5 methods on t, &lt;m&gt; against') == 1


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


# ---- in a browser


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


def test_the_chance_level_in_a_head_is_that_of_random_scores():
    def row(method: str, chance: float | None) -> Number:
        return Number("t", "m", method, 0.5, track="test_time", chance=chance)

    assert chance_levels([row("tent", 0.3), row("zero", 0.3), row("ttm", 0.2), row("mine", None)]) == {"m": 0.2}
    assert chance_levels([row("tent", 0.3), row("zero", 0.4), row("mta", 0.4)]) == {"m": 0.4}
