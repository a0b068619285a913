"""Two checkpoints are two models, whatever their folders are called; one checkpoint is one, wherever it lies."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from support.documents import whole_document

import ttmbench
from ttmbench.cli import main
from ttmbench.results.document import ResultsDocument
from ttmbench.results.models import stated_model, tell_apart
from ttmbench.results.numbers import newest, read_runs

ASSETS = Path(ttmbench.__file__).resolve().parents[1] / "model_adapters" / "assets"


def names(*documents):
    return tell_apart([stated_model(ResultsDocument.of(one)) for one in documents])


def document(path=None, weights="w", name=None, date=0.0, model="hf", **fingerprint):
    """A run of a checkpoint; by default it is called as a run would call it."""
    arguments = {} if path is None else {"pretrained": path}
    return whole_document(
        {"t": {"group_match,none": 0.5}},
        model_name=name or (Path(path).name if path else model),
        config={"model": model, "model_args": arguments},
        model_info={"fingerprint": {"weights_sha256": weights, **fingerprint}} if weights else {},
        date=date,
    )


def test_folders_of_one_name_are_told_apart_by_the_shortest_path():
    one, two = document("a/checkpoint-500", "w1"), document("b/checkpoint-500", "w2")
    assert names(one) == ["checkpoint-500"], "alone it keeps its name"
    assert names(one, two) == ["a/checkpoint-500", "b/checkpoint-500"]
    deep = [document(f"/runs/{run}/out/checkpoint-500/", f"w{run}") for run in (1, 2)]
    assert names(*deep) == ["1/out/checkpoint-500", "2/out/checkpoint-500"]
    assert names(document("checkpoint-500", "w1"), document("../x/checkpoint-500", "w2")) == [
        "checkpoint-500",
        "x/checkpoint-500",
    ]
    seeds = [document(rf"C:\adapted\{task}\seed_0", task, name="seed_0") for task in ("shapes", "places")]
    assert names(*seeds) == ["shapes/seed_0", "places/seed_0"], "as --save_adapted calls its folders"


def test_the_way_of_scoring_stays_in_the_name():
    one, two = (
        document(f"{run}/llava", run, name="vqascore/llava", model="vqascore", prompt="?") for run in ("a", "b")
    )
    assert names(one, two) == ["vqascore/a/llava", "vqascore/b/llava"]


def test_one_checkpoint_is_one_model():
    here, copy = document("a/checkpoint-500", date=1), document("b/other", date=2, device="cuda", n_parameters=3)
    assert names(here, copy) == ["other", "other"], "the newest name"
    assert names(here, document("b/checkpoint-500", name="mine")) == ["mine", "mine"], "a given name goes first"
    registered = document(model="siglip-b16", pretrained="google/siglip")
    assert (
        names(registered, document("google/siglip", date=1, pretrained="google/siglip", name="google/siglip"))
        == ["google/siglip"] * 2
    )


def test_two_names_given_to_one_checkpoint_are_two_rows():
    assert names(document("x", name="slow"), document("x", name="fast"), document("x")) == ["slow", "fast", "x"]


def test_settings_that_change_numbers_are_another_model_and_the_machine_is_not():
    full, half = document("x", dtype="float32"), document("x", dtype="bfloat16")
    assert names(full, half) == ["x (float32)", "x (bfloat16)"]
    assert len(set(names(document("x", prompt="a"), document("x", prompt="b")))) == 2
    assert all(name.startswith("x (") for name in names(document("x", prompt="a"), document("x", prompt="b")))
    machines = [
        document("x", **{key: value}) for key in ("device", "attn_implementation", "compiled") for value in "ab"
    ]
    assert set(names(*machines)) == {"x"}
    api = [document(weights=None), document(weights=None)]
    for one, server in zip(api, ("gpt-1", "gpt-2"), strict=True):
        one["model_info"] = {"fingerprint": {"pretrained": server}}
    assert len(set(names(*api))) == 2, "without a digest of weights their name counts"


def test_documents_without_a_fingerprint_go_by_name():
    old, new = document("x", weights=None), document("x", "w1")
    assert names(old, new) == ["x", "x"]
    assert names(old, old, document("y", weights=None)) == ["x", "x", "y"]
    several = names(old, document("a/x", "w1"), document("b/x", "w2"))
    assert len(set(several)) == 3 and several[1:] == ["a/x", "b/x"]
    odd = {**old, "model_name": "", "config": {}, "model_info": {"fingerprint": "?"}}
    assert names(odd) == ["unnamed"]


def test_names_given_twice_to_two_checkpoints_say_where_they_lie():
    assert names(document("a/x", "w1", "mine"), document("b/x", "w2", "mine")) == ["mine (a/x)", "mine (b/x)"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of two checkpoints in folders of one name, by the command line, and of one of them under a given name."""
    place = tmp_path_factory.mktemp("checkpoints")
    for folder, weights in (("a", "tiny_clip"), ("b", "tiny_clip_seed1")):
        shutil.copytree(ASSETS / weights, place / folder / "checkpoint-500")
        words = ["-M", "hf", "-a", f"pretrained={place}/{folder}/checkpoint-500", "-t", "shapes_color", "--limit", "6"]
        words += ["--device", "cpu", "--bootstrap_iters", "0", "--use_cache", "off", "--log_samples"]
        assert main([*words, "-o", str(place / "runs")]) == 0
        if folder == "b":
            assert main([*words, "-o", str(place / "named"), "--name", "mine"]) == 0
    return place


def test_two_checkpoints_are_two_rows_everywhere(runs, tmp_path, capsys):
    assert main(["leaderboard", str(runs / "runs"), "-o", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "leaderboard.json").read_text())["rows"]
    assert {row["model"] for row in rows} == {"a/checkpoint-500", "b/checkpoint-500"}
    assert len({row["fingerprint"] for row in rows}) == 2
    documents = sorted(map(str, (runs / "runs").rglob("results_*.json")))
    assert main(["compare", *documents]) == 0
    assert main(["report", str(runs / "runs"), "--images", "none", "-o", str(tmp_path / "r.html")]) == 0
    assert main(["export", str(runs / "runs"), "--to", "csv", "-o", str(tmp_path / "r.csv")]) == 0
    assert main(["export", str(runs / "runs"), "--to", "latex"]) == 0
    printed = capsys.readouterr().out
    assert "a/checkpoint-500 -> b/checkpoint-500" in printed and "b/checkpoint-500 & " in printed
    page = (tmp_path / "r.html").read_text()
    assert "a/checkpoint-500" in page and "b/checkpoint-500" in page
    with (tmp_path / "r.csv").open() as file:
        assert {row["model"] for row in csv.DictReader(file)} == {"a/checkpoint-500", "b/checkpoint-500"}
    found, _ = read_runs([runs / "runs"])
    assert len(newest(one for run in found for one in run.numbers())) == 2 * len(found[0].numbers())


def test_a_name_says_what_a_row_is_called(runs, tmp_path):
    assert (runs / "named" / "mine").is_dir()
    assert main(["leaderboard", str(runs), "-o", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "leaderboard.json").read_text())["rows"]
    assert {row["model"] for row in rows} == {"checkpoint-500", "mine"}, "the newest run of b and the named one are one"
