"""Benchmarks of 2021 to 2025 in the formats of their releases: names, keys and nesting are real, contents are ours."""

from __future__ import annotations

from support import hub_datasets
from support.task_data import changed, load


def test_rocketscience_counts_a_row_for_each_of_its_categories(tmp_path):
    hub_datasets.rocketscience(tmp_path)
    (commit,) = (tmp_path / "datasets" / "nilshoehing" / "rocketsciencebench").glob("*/data")
    groups = load(changed("rocketscience", {"path": str(commit.parent)})).groups
    assert len(groups) == 241 and groups[0].captions == hub_datasets.words(0)
    kinds = [group.tags["Category"] for group in groups]
    assert kinds.count("Horizontal Position") == 60 and kinds[60] == "Order, Absolute Position"
