"""Groups with foils drawn at random, from another source's pairs."""

from __future__ import annotations

import pytest
import yaml
from support.task_data import find, task_file
from support.task_data import load as read

from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError


@pytest.fixture
def foils(tmp_path):
    """Loads a task with random foils of built-in groups."""

    def load(limit=None, n=20, seed=0, shape=(2, 2), **changes):
        base = find("shapes_color").spec.source
        source = {"kind": "random_foils", "seed": seed, "of": [{**base, **changes}]}
        group = {"shape": list(shape), "n_groups": n}
        return read(task_file(tmp_path, source, group, "foils", metrics=["text_score"]), limit=limit)

    return load


def test_each_group_keeps_a_pair_and_gets_one_of_another_group(foils):
    own = {group.group_id: group for group in read("shapes_color").groups}
    loaded = foils(n=len(own))
    assert loaded.source["random_foils"] == {"seed": 0, "pairs_of": len(own)}
    kept, drawn = set(), set()
    for group in loaded.groups:
        mine = own[group.group_id]
        pair = int(group.tags["pair"])
        assert (group.images[0], group.captions[0]) == (mine.images[pair], mine.captions[pair])
        other, place = group.tags["foils"].rsplit("/", 1)
        assert other != group.group_id, "the group's own other pair is the foil that was made for it"
        assert (group.images[1], group.captions[1]) == (own[other].images[int(place)], own[other].captions[int(place)])
        assert len(set(group.captions)) == 2
        kept.add(pair)
        drawn.add((other, place))
    assert kept == {0, 1} and len(drawn) > len(own) / 3, "both sides, and foils from all over"


def test_the_draw_depends_on_the_seed_and_not_on_the_limit(foils):
    count = find("shapes_color").spec.group.n_groups
    whole = foils(n=count).groups
    assert [group.tags for group in foils(limit=5, n=count).groups] == [group.tags for group in whole[:5]]
    assert [group.tags["foils"] for group in foils(n=count, seed=1).groups] != [group.tags["foils"] for group in whole]


def test_what_cannot_be_drawn_says_so(foils, folder_task, tmp_path):
    with pytest.raises(UsageError, match=r"as many images as captions, and group\.shape is 1x2"):
        foils(shape=(1, 2))
    folder = folder_task("one", n=1)
    source = yaml.safe_load((folder / "one.yaml").read_text())
    source["source"] = {"kind": "random_foils", "of": [source["source"]]}
    (folder / "one.yaml").write_text(yaml.safe_dump(source))
    with pytest.raises(DataError, match="1 groups have no pair that is a foil of group g0"):
        read(folder / "one.yaml")


def test_the_task_of_colorswap_is_validated_and_names_where_its_data_are(capsys):
    spec = find("colorswap_random").spec
    assert (spec.group.n_groups, str(spec.shape), spec.source["kind"]) == (300, "2x2", "random_foils")
    assert "not published" in spec.description and spec.ttm == {} and "compositional" not in spec.tag
    (inner,) = spec.source["of"]
    assert inner == find("colorswap").spec.source
    assert main(["download", "colorswap_random", "--dry_run"]) in (0, 4)
    assert "stanfordnlp/colorswap" in capsys.readouterr().out
