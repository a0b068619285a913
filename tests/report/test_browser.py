"""The pages in a real Chromium: nothing from data runs, nothing is loaded, and everything works by keyboard."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from support.browser import column

from ttmbench.cli import main
from ttmbench.report.html.render import Report, to_html
from ttmbench.report.load import GroupSet, Thumbnails, gather

TEST_TIME, MATCHING = "#test_time-table", "#matching-table"


@pytest.fixture(scope="module")
def report_page(reported_runs, evil_task, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", str(reported_runs), "-o", str(target), "--include_path", str(evil_task.parent)]) == 0
    return target


def choose_evil(page) -> None:
    labels = page.locator("#browser [name=set] option").all_inner_texts()
    page.select_option("#browser [name=set]", label=next(text for text in labels if "evil_captions" in text))


def show(page, kind: str) -> list[str]:
    """The ids of the first page of groups of a kind."""
    labels = page.locator("#browser [name=kind] option").all_inner_texts()
    page.select_option("#browser [name=kind]", label=next(text for text in labels if text.startswith(f"{kind} (")))
    return page.locator("#cards h3 > bdi").all_inner_texts()


def of(page, table: str, name: str) -> list[str]:
    """The shown cells of a column."""
    return column(page, table, page.locator(f"{table} thead button").all_inner_texts().index(name) + 1)


def test_tables_are_sorted_by_click_and_by_keyboard(opened, report_page):
    with opened(report_page) as page:
        head = page.locator(f"{TEST_TIME} th", has_text="value")

        def values() -> list[float]:
            return [float(text.split()[0]) for text in of(page, TEST_TIME, "value")]

        before = values()
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending" and values() == sorted(before, reverse=True)
        assert page.url.endswith("#sort=test_time-table%3Avalue%3Adown")
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == "ascending" and values() == sorted(before)
        page.locator(f"{TEST_TIME} th", has_text="metric").locator("button").press("Space")
        assert head.get_attribute("aria-sort") == "none"
        assert of(page, TEST_TIME, "metric") == sorted(of(page, TEST_TIME, "metric"))


def test_result_rows_are_chosen_by_form_and_address(opened, report_page):
    with opened(report_page) as page:
        form = page.locator("form[data-for=results-tables]")
        total = int(form.locator("output").inner_text().split()[2])
        form.locator("[name=metric]").select_option("group_match")
        form.locator("[name=task]").select_option("shapes_color")
        assert {*of(page, MATCHING, "metric"), *of(page, TEST_TIME, "metric")} == {"group match"}
        assert page.locator("#zero_shot").is_hidden(), "a table without rows goes with its heading"
        form.locator("[name=text]").fill("placebo")
        assert form.locator("output").inner_text() == f"1 of {total} rows"
        page.reload()
        assert page.locator("form[data-for=results-tables] output").inner_text() == f"1 of {total} rows"


def test_groups_are_filtered_searched_and_opened(opened, report_page, reported_runs):
    run = gather(reported_runs)[0][0]
    lines = [json.loads(line) for line in run.checked[0]["samples"]["shapes_color"].read_text("utf-8").splitlines()]
    raw = {line["group_id"]: line["metrics"]["group_match"] for line in lines if line["method"] == "none"}
    seeds: dict[str, list[float]] = {}
    for line in lines:
        if line["method"] == "ttm":
            seeds.setdefault(line["group_id"], []).append(line["metrics"]["group_match"])
    won = [group for group, values in seeds.items() if raw[group] == 0 and sum(values) == 2]
    lost = [group for group, values in seeds.items() if raw[group] == 1 and sum(values) < 2]
    assert won and lost
    with opened(report_page) as page:
        status = page.locator("#found")
        assert status.inner_text() == "40 of 40 groups, showing 1 to 12"
        assert page.locator("#cards > li").count() == 12
        for _ in range(3):
            page.get_by_role("button", name="Next", exact=True).press("Enter")
        assert status.inner_text() == "40 of 40 groups, showing 37 to 40"
        assert page.get_by_role("button", name="Next", exact=True).is_disabled()
        assert show(page, "flipped to correct") == won[:12] and show(page, "flipped to incorrect") == lost[:12]
        assert set(show(page, "all")[: len(won) + len(lost)]) <= {*won, *lost}, "changed groups come first"
        for name in ("absent", list(raw)[-1]):
            page.evaluate("name => { location.hash = `group=shapes_color,${name}` }", name)
        linked = page.locator(".linked h3")
        linked.wait_for()
        assert linked.locator("bdi").inner_text() == list(raw)[-1]
        assert linked.locator("a").get_attribute("href") == f"#group=shapes_color,{list(raw)[-1]}"
        page.get_by_label("Search captions").fill(won[0])
        assert page.locator("#cards h3 > bdi").all_inner_texts() == [won[0]]
        card = page.locator("#cards > li")
        assert card.locator("img").count() == 2
        assert card.locator("img").first.evaluate("image => image.naturalWidth") > 20
        heat = card.locator("table.heat").first
        want = next(line for line in lines if line["group_id"] == won[0])["scores"]
        read = "cells => cells.map(cell => [...cell.childNodes].find(node => node.nodeType === 3).data)"
        shown = [float(text) for text in heat.locator("tbody td").evaluate_all(read)]
        assert shown == pytest.approx([score for row in want for score in row], abs=0.006)
        assert heat.locator("td.chosen").count() == 2
        card.locator("summary").focus()
        page.keyboard.press("Enter")
        assert (
            "group match" in card.locator("details table").inner_text() and "colors" in card.locator("dl").inner_text()
        )
        page.get_by_label("Search captions").fill("no such words")
        assert status.inner_text() == "none of 40 groups" and page.locator("#cards > li").count() == 0


def test_hostile_captions_are_text(opened, report_page, evil_captions):
    with opened(report_page) as page:
        choose_evil(page)
        shown = page.locator("#cards figcaption bdi").evaluate_all("nodes => nodes.map(node => node.textContent)")
        assert set(shown) == {*evil_captions[:2], "line\ufffdseparator\ufffdand \u2407bell", evil_captions[3]}
        assert "</script><b>0" in page.locator("#cards h3 > bdi").all_inner_texts()
        assert page.locator("main b, main svg[onload], img[src=x]").count() == 0
        page.get_by_label("Search captions").fill("<SCRIPT>")
        assert page.locator("#cards > li").count() == 1
        assert page.locator("#cards img").count() == 2


def test_it_is_readable_in_dark_and_on_a_phone(opened, report_page):
    with opened(report_page, color_scheme="dark") as page:
        colors = page.evaluate("['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])")
        paper, ink = [sum(map(int, color[4:-1].split(","))) for color in colors]
        assert paper < 120 and ink > 600
    for width in (360, 800):
        with opened(report_page, width=width) as page:
            choose_evil(page)
            page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
            page.locator("#cards details table").first.wait_for()
            sizes = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert sizes == [width, width]
            heads = page.locator("#cards details tbody th").evaluate_all("heads => heads.map(head => head.offsetWidth)")
            assert min(heads) > 60, "words are not broken into letters"


def test_every_control_has_a_name_and_focus_is_seen(opened, report_page):
    with opened(report_page) as page:
        nameless = page.locator("button, select, input, a, summary, [role=region]").evaluate_all(
            "nodes => nodes.filter(node => !(node.textContent.trim() || node.ariaLabel || node.labels?.[0]?.textContent"
            " || document.getElementById(node.getAttribute('aria-labelledby')))).map(node => node.outerHTML)"
        )
        assert nameless == []
        levels = page.locator("h1, h2, h3, h4").evaluate_all("nodes => nodes.map(node => +node.tagName[1])")
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.locator("#answer-table button").first.focus()
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_of_thousands_of_groups_one_page_is_in_the_document(opened, reported_runs, tmp_path):
    """The last group has answers in words and no scores."""
    runs, skipped = gather(reported_runs)
    methods = [{"name": name, "words": name, "seeds": [None]} for name in ("none", "ttm")]
    row = [[[1.25, 2.5], [3.5, 4.75]], [0, 1], 0, 0.5, [1]]
    groups = [
        [f"g{at}", [f"a cat {at}", f"a dog {at}"], ["a.png", "b.png"], ["x"], [[row], [row]]] for at in range(7500)
    ]
    answers = [["image 1", "Which caption?", "(A) <b>it</b>", True], ["image 2", "Which?", None, False]]
    chosen = [[None, None, 0, None, [1], answers]]
    groups.append(["words", ["a cat", "a dog"], ["x.png", "y.png"], ["x"], [chosen, chosen]])
    data = {"metrics": ["group_match"], "methods": methods, "tags": ["kind"], "groups": groups}
    shown = Report(runs, skipped, sets=[(GroupSet(runs[0], "shapes_color", data), 0)], thumbnails=[Thumbnails("x")])
    path = tmp_path / "large.html"
    path.write_text(to_html(shown), "utf-8")
    with opened(path) as page:
        assert page.locator("#found").inner_text() == "7501 of 7501 groups, showing 1 to 12"
        page.get_by_label("Search captions").fill("dog 74")
        assert page.locator("#found").inner_text().startswith(f"{sum('74' in str(at) for at in range(7500))} of 7501")
        assert page.locator("#cards > li").count() == 12
        page.get_by_label("Search captions").fill("words")
        answers = page.locator("#cards .matrices li").all_inner_texts()
        assert len(answers) == 2 and "(A) <b>it</b>" in answers[0] and "refused" in answers[1]
        assert "correct" in page.locator("#cards h3").inner_text()
        assert "x.png" in page.locator("#cards figure").first.inner_text()
