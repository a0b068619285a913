"""The pages in a real Chromium: nothing from data runs, nothing is loaded, and everything works by keyboard."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from support.browser import column

from ttmbench.cli import main
from ttmbench.report.groups import GroupSet
from ttmbench.report.html.report_page import Report, to_html
from ttmbench.report.load import gather
from ttmbench.report.thumbnails import Thumbnails


@pytest.fixture(scope="module")
def report_page(reported_runs, evil_task, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", str(reported_runs), "-o", str(target), "--include_path", str(evil_task.parent)]) == 0
    return target


def choose_evil(page) -> None:
    labels = page.locator("#browser [name=set] option").all_inner_texts()
    page.select_option("#browser [name=set]", label=next(text for text in labels if "evil_captions" in text))


def widths(page) -> tuple[int, int]:
    return tuple(page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]"))


def test_tables_are_sorted_by_click_and_by_keyboard(opened, report_page):
    table = "section:has(> #track-test_time) table"
    with opened(report_page) as page:
        head = page.locator(f"{table} th", has_text="value")
        before = column(page, table, 5)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        numbers = [float(text) for text in column(page, table, 5)]
        assert numbers == sorted(numbers, reverse=True) and sorted(map(float, before)) == sorted(numbers)
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        assert [float(text) for text in column(page, table, 5)] == sorted(numbers)
        metric = page.locator(f"{table} th", has_text="metric").locator("button")
        metric.focus()
        page.keyboard.press("Space")
        assert head.get_attribute("aria-sort") == "none"
        assert column(page, table, 3) == sorted(column(page, table, 3))


def test_result_rows_are_chosen_by_form(opened, report_page):
    with opened(report_page) as page:
        form = page.locator("form[data-for=result-tables]")
        total = int(form.locator("output").inner_text().split()[2])
        form.locator("[name=metric]").select_option("group_match")
        form.locator("[name=task]").select_option("shapes_color")
        shown = [
            text
            for track in ("matching", "test_time")
            for text in column(page, f"section:has(> #track-{track}) table", 3)
        ]
        assert set(shown) == {"group match"}
        assert page.locator("#track-zero_shot").is_hidden(), "a table without rows goes with its heading"
        form.locator("[name=text]").fill("placebo")
        assert form.locator("output").inner_text() == f"1 of {total} rows"


def test_groups_are_filtered_searched_and_opened(opened, report_page, reported_runs):
    run = gather(reported_runs).runs[0]
    lines = [json.loads(line) for line in run.files["samples"]["shapes_color"].read_text("utf-8").splitlines()]
    raw = {line["group_id"]: line["metrics"]["group_match"] for line in lines if line["filter"] == "none"}
    seeds: dict[str, list[float]] = {}
    for line in lines:
        if line["filter"] == "ttm":
            seeds.setdefault(line["group_id"], []).append(line["metrics"]["group_match"])
    won = [group for group, values in seeds.items() if raw[group] == 0 and sum(values) == 2]
    lost = [group for group, values in seeds.items() if raw[group] == 1 and sum(values) < 2]
    assert won and lost
    with opened(report_page) as page:
        status = page.locator("#found")
        assert status.inner_text() == "40 of 40 groups, showing 1 to 12"
        assert page.locator("#cards > li").count() == 12
        page.get_by_role("button", name="Last", exact=True).click()
        assert status.inner_text() == "40 of 40 groups, showing 37 to 40"
        page.get_by_role("radio", name="all").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert page.get_by_role("radio", name="flipped to correct").is_checked()
        assert page.locator("#cards h3 > bdi").all_inner_texts() == won[:12]
        page.get_by_role("radio", name="flipped to incorrect").check()
        assert page.locator("#cards h3 > bdi").all_inner_texts() == lost[:12]
        page.get_by_role("radio", name="all").check()
        changed = page.locator("#cards h3 > bdi").all_inner_texts()[: len(won) + len(lost)]
        assert set(changed) <= {*won, *lost}, "changed groups come first"
        for name in ("absent", list(raw)[-1]):
            page.evaluate("name => { location.hash = `group=shapes_color,${name}` }", name)
        linked = page.locator("li.linked h3")
        linked.wait_for()
        assert linked.locator("bdi").inner_text() == list(raw)[-1]
        assert linked.locator("a").get_attribute("href") == f"#group=shapes_color,{list(raw)[-1]}"
        page.get_by_role("radio", name="all").check()
        page.get_by_label("Search captions").fill(won[0])
        assert page.locator("#cards h3 > bdi").all_inner_texts() == [won[0]]
        card = page.locator("#cards > li")
        assert card.locator("img").count() == 2
        assert card.locator("img").first.evaluate("image => image.naturalWidth") > 20
        matrices = card.locator("table.heat").all()
        want = next(line for line in lines if line["group_id"] == won[0])["scores"]
        shown = [
            float(text)
            for text in matrices[0]
            .locator("td")
            .evaluate_all("cells => cells.map(cell => [...cell.childNodes].find(node => node.nodeType === 3).data)")
        ]
        assert shown == pytest.approx([score for row in want for score in row], abs=0.006)
        assert matrices[0].locator("td.chosen").count() == 2
        card.locator("summary").focus()
        page.keyboard.press("Enter")
        table = card.locator("details table")
        assert "group match" in table.inner_text() and "colors" in card.locator("dl").inner_text()
        page.get_by_label("Search captions").fill("no such words")
        assert status.inner_text() == "none of 40 groups" and page.locator("#cards > li").count() == 0


def test_groups_by_tag_by_seed_and_by_margin(opened, report_page):
    with opened(report_page) as page:
        page.select_option("#browser [name=tag]", label="colors")
        option = page.locator("#browser [name=value] option").nth(1)
        name, count = option.inner_text().rsplit(" ", 1)
        page.select_option("#browser [name=value]", index=1)
        assert page.locator("#found").inner_text().startswith(f"{count.strip('()')} of 40 groups")
        page.locator("#cards summary").first.click()
        assert name in page.locator("#cards dl").first.inner_text()
        page.select_option("#browser [name=tag]", label="all")
        before = {name: page.locator(f"[data-count={name}]").inner_text() for name in ("right", "wrong")}
        assert sum(map(int, before.values())) == 40
        page.select_option("#browser [name=seed]", label="seed 1")
        assert "seeds" not in page.locator("#cards table.heat caption").nth(1).inner_text()
        page.select_option("#browser [name=order]", "small")
        page.locator("#cards summary").first.click()
        first = page.locator("#cards details tr", has_text="margin").first.locator("td").first.inner_text()
        page.select_option("#browser [name=order]", "large")
        page.locator("#cards summary").first.click()
        last = page.locator("#cards details tr", has_text="margin").first.locator("td").first.inner_text()
        assert float(first) < float(last)


def test_hostile_captions_are_text(opened, report_page, evil_captions):
    with opened(report_page) as page:
        choose_evil(page)
        shown = page.locator("#cards figcaption bdi").evaluate_all("nodes => nodes.map(node => node.textContent)")
        assert shown[:2] == list(evil_captions[:2])
        assert shown[2] == "line\ufffdseparator\ufffdand \u2407bell" and shown[3] == evil_captions[3]
        assert page.locator("#cards h3 > bdi").first.inner_text() == "</script><b>0"
        assert page.locator("main b, main svg[onload], img[src=x]").count() == 0
        page.get_by_label("Search captions").fill("<SCRIPT>")
        assert page.locator("#cards > li").count() == 1
        assert page.locator("#cards img").count() == 2


def test_it_is_readable_in_dark_and_on_a_phone(opened, report_page):
    with opened(report_page, color_scheme="dark") as page:
        paper, ink = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        light = [sum(map(int, color[4:-1].split(","))) for color in (paper, ink)]
        assert light[0] < 120 and light[1] > 600
    for width in (360, 800):
        with opened(report_page, width=width) as page:
            choose_evil(page)
            page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
            page.locator("#cards details table").first.wait_for()
            wide, window = widths(page)
            assert wide <= window == width
            heads = page.locator("#cards details tbody th").evaluate_all("heads => heads.map(head => head.offsetWidth)")
            assert min(heads) > 60, "words are not broken into letters"


def test_every_control_has_a_name_and_focus_is_seen(opened, report_page):
    with opened(report_page) as page:
        nameless = page.locator("button, select, input, a, summary, [role=region], table").evaluate_all(
            "nodes => nodes.filter(node => !(node.textContent.trim() || node.ariaLabel || node.labels?.[0]?.textContent"
            " || document.getElementById(node.getAttribute('aria-labelledby')))).map(node => node.outerHTML)"
        )
        assert nameless == []
        levels = page.locator("h1, h2, h3, h4").evaluate_all("nodes => nodes.map(node => +node.tagName[1])")
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.locator("#runs-table button").first.focus()
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


def test_of_thousands_of_groups_one_page_is_in_the_document(opened, reported_runs, tmp_path):
    run = gather(reported_runs).runs[0]
    filters = [
        {"name": "none", "words": "raw", "seeds": [None]},
        {"name": "ttm", "words": "TTM", "seeds": [0, 1, 2, 3]},
    ]

    def row(at: int) -> list:
        return [[[1.25, 2.5], [3.5, 4.75]], [at % 2, 1 - at % 2], 0, at / 1000, [1 - at % 2]]

    groups = []
    for at in range(7500):
        texts = [f"a red cat {at}", f"a blue dog {at}"], [f"{at}a.png", f"{at}b.png"]
        groups.append([f"g{at}", *texts, ["x"], [[row(at)], [row(at + seed) for seed in range(4)]]])
    data = {"metrics": ["group_match"], "filters": filters, "tags": ["kind"], "groups": groups}
    one = GroupSet(run, "shapes_color", data)
    report = Report(gather(reported_runs), [], [one], {one.images_of: Thumbnails("shapes_color")})
    path = tmp_path / "large.html"
    path.write_text(to_html(report), encoding="utf-8")
    with opened(path) as page:
        assert page.locator("#found").inner_text() == "7500 of 7500 groups, showing 1 to 12"
        page.get_by_label("Search captions").fill("dog 74")
        assert page.locator("#found").inner_text().startswith(f"{sum('74' in str(at) for at in range(7500))} of 7500")
        assert page.locator("#cards > li").count() == 12


def test_linked_images_are_shown(chromium, reported_runs, evil_task, tmp_path):
    (document,) = (reported_runs / "tiny-clip-seed1").glob("results_*.json")
    target = tmp_path / "links.html"
    here = ["--include_path", str(evil_task.parent)]
    assert main(["report", str(document), "-o", str(target), "--images", "links", *here]) == 0
    page = chromium.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(target.as_uri())
    image = page.locator("#cards img").first
    image.scroll_into_view_if_needed()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 40
    assert all(address.startswith("file://") for address in asked)
    page.close()


def test_answers_in_words_are_shown(opened, reported_runs, tmp_path):
    gathered = gather(reported_runs)
    answers = [
        ["image 1", "Which caption?", "(A) <b>it</b>", [0, 1], 0, True],
        ["image 2", "Which?", None, [1, 0], None, False],
    ]
    filters = [{"name": "choice", "words": "forced choice", "seeds": [None]}]
    rows = [[None, None, 0, None, [1], answers]]
    groups = [["g", ["a cat", "a dog"], ["x.png", "y.png"], [], [rows]]]
    data = {"metrics": ["text_score"], "filters": filters, "tags": [], "groups": groups}
    one = GroupSet(gathered.runs[0], "shapes_color", data)
    thumbnails = {one.images_of: Thumbnails("shapes_color", why="names only")}
    path = tmp_path / "choice.html"
    path.write_text(to_html(Report(gathered, [], [one], thumbnails)), encoding="utf-8")
    with opened(path) as page:
        assert page.locator("#cards .answers li").count() == 2
        assert "(A) <b>it</b>" in page.locator("#cards .answers").inner_text()
        assert "refused" in page.locator("#cards .answers li").nth(1).inner_text()
        assert "correct" in page.locator("#cards h3").inner_text()
        assert "x.png" in page.locator("#cards figure").first.inner_text()


def test_the_leaderboard(opened, reported_runs, tmp_path):
    assert main(["leaderboard", str(reported_runs), "-o", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "leaderboard.json").read_text())
    values = [row["value"] for row in document["rows"] if row["track"] == "matching"]
    assert len(values) == 3
    with opened(tmp_path / "leaderboard.html") as page:
        table = "section:has(> #zero_shot) table"
        page.select_option("form [name=metric]", "group_score")
        shown = page.locator(f"{table} th.number:visible").all_inner_texts()
        assert shown and all("group score" in text for text in shown)
    with opened(tmp_path / "leaderboard.html", width=360) as page:
        wide, window = widths(page)
        assert wide <= window


def test_numbers_sort_as_numbers_and_parts_of_tasks_stay_below(opened, reported_runs, tmp_path):
    """9 before 10: cells are compared by value, not by their text."""
    path = next((reported_runs / "tiny-clip-seed1").glob("results_*.json"))
    for at, (value, scored) in enumerate(((0.09, 9), (1.0, 4), (0.1, 9), (0.0, 4))):
        document = json.loads(path.read_text(encoding="utf-8")) | {"model_name": f"model {at}"}
        for task, numbers in document["results"].items():
            numbers["group_match,none"] = value
            document["n-samples"][task] = {"original": 9, "effective": scored}
        (tmp_path / f"{at}.json").write_text(json.dumps(document), encoding="utf-8")
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path), "--images", "none"]) == 0
    down, up = ["10.00", "9.00", "100.00", "0.00"], ["9.00", "10.00", "0.00", "100.00"]
    with opened(tmp_path / "leaderboard.html") as page:
        table = "section:has(> #matching) table"
        head = page.locator(f"{table} th.number button")
        for order in (down, up):
            head.press("Enter")
            assert column(page, table, 3) == order
        assert column(page, table, 4) == ["9 of 9", "9 of 9", "4 of 9", "4 of 9"]
    with opened(tmp_path / "report.html") as page:
        table = "section:has(> #track-matching) table"
        page.locator(f"{table} th", has_text="value").locator("button").click()
        assert column(page, table, 5) == down


def test_on_a_phone_a_value_stands_in_the_first_view(opened, reported_runs, tmp_path):
    (one,) = (path for path in (reported_runs / "tiny-clip").glob("results_*.json"))
    target = tmp_path / "phone.html"
    assert main(["report", str(one), "--images", "none", "-o", str(target)]) == 0
    with opened(target, width=390) as page:
        for table in page.locator("#result-tables table").all():
            value = table.locator("tbody td.number").first.bounding_box()
            assert value["x"] + value["width"] <= 390
        chart = page.locator("img.chart").first
        assert chart.evaluate("image => image.decode().then(() => image.naturalWidth)") > 390
        assert chart.evaluate("image => image.width === image.naturalWidth"), "moved sideways, not made smaller"
