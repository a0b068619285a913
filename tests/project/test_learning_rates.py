"""The study of learning rates: its runs are TTM's, its rules see no label, and its page shows what was measured."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path

import pytest

import ttmbench

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "docs"))
    before = set(sys.modules)
    import learning_rate_rules
    import learning_rates

    yield learning_rates, learning_rate_rules
    for name in {"learning_rate_rules", "learning_rates"} - before:
        sys.modules.pop(name, None)


def test_the_page_shows_what_was_measured(scripts):
    _, rules = scripts
    page = (ROOT / "docs" / "learning-rate.md").read_text(encoding="utf-8")
    rows = rules.read()
    assert {(row["task"], row["model"]) for row in rows} == {
        (t, m) for t in scripts[0].TASKS for m in scripts[0].MODELS
    }
    assert rules.measured(rows) in page
    assert rules.rules(rows) in page
    assert f"{rules.noise(rows):.1f} points" in page


def test_no_rule_holds_and_so_none_is_offered(scripts):
    """If new numbers let one hold, ``lr=auto`` is to be thought about again."""
    _, rules = scripts
    rows = rules.read()
    found = list(rules.judged(rows))
    assert len(found) == 15 and not any(verdict.holds(rules.noise(rows)) for *_, verdict in found)
    assert len(rules.cells(rows)) == 10


def test_a_run_of_the_study_is_a_run_of_ttm(scripts, tmp_path, monkeypatch):
    study, _ = scripts
    file = tmp_path / "cells.jsonl"
    limited = {"limit": 60}
    monkeypatch.setattr(study, "RunConfig", functools.partial(study.RunConfig, **limited))
    options = argparse.Namespace(tasks="shapes_replace", models="tiny-clip", rates="1e-3", seeds="0,1")
    settings = {"iterations": 2, "epochs": 1}
    study.measure(file, options, settings)
    written = file.read_text(encoding="utf-8")
    study.measure(file, options, settings)
    assert file.read_text(encoding="utf-8") == written, "what is there is not run again"
    monkeypatch.setattr(study, "SUMMARY", tmp_path / "summary.json")
    (entry,) = study.summary(file)
    how = {"seeds": [0, 1], "device": "cpu", "bootstrap_iters": 0, **limited}
    run = ttmbench.simple_evaluate("tiny-clip", "shapes_replace", ttm={**settings, "lr": 1e-3}, **how)
    lines = run["ttm"]["shapes_replace"]["iterations"]
    assert entry["reads_labels"]["ttm"] == [line["metrics"]["group_match"] for line in lines if line["iteration"] == 2]
    losses = [line["loss"][-1] for line in lines if line["iteration"] == 2]
    assert entry["final_loss"] == pytest.approx(losses, abs=1e-5)
    assert entry["reads_labels"]["raw"] == run.results["shapes_replace"]["group_match,none"]
    assert 0 < entry["agreement"]["0,1"] <= 1 and json.dumps(entry)


def test_rules_see_what_they_say(scripts):
    _, rules = scripts
    found = {
        1e-4: rules.Signs(loss=0.9, agreement=0.99, kept=1.0, settled=1.0),
        2e-4: rules.Signs(loss=0.6, agreement=0.94, kept=0.93, settled=0.99),
        5e-4: rules.Signs(loss=0.5, agreement=0.88, kept=0.90, settled=0.94),
    }
    chosen = {text: rule(found) for text, rule in {**rules.NEEDS_SEEDS, **rules.ALONE}.items()}
    assert chosen == {
        "smallest loss, seeds agree on 85 %": 5e-4,
        "smallest loss, seeds agree on 90 %": 2e-4,
        "smallest loss, seeds agree on 95 %": 1e-4,
        "smallest loss": 5e-4,
        "smallest loss, 90 % of the surest kept": 5e-4,
        "smallest loss, 95 % of the surest kept": 1e-4,
        "smallest loss, 95 % settled": 2e-4,
        "smallest rate within 1.5 times the smallest loss": 2e-4,
        "smallest rate within 2 times the smallest loss": 1e-4,
    }
    assert rules.agree(0.995)(found) == 1e-4, "where no rate is allowed, the one at which most agrees"
