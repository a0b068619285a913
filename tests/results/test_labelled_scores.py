"""Stored scores of captions and foils, as VALSE's are stored: read in any order, scored instrument by instrument."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import DataError

SHARED = Path(__file__).resolve().parents[3] / "shared"
REAL = SHARED / "real-scores" / "valse" / "clipcap_cc.jsonl"
VALID = {  # instrument -> piece, pairs that annotators confirmed
    "actant-swap": ("actions", 949),
    "action-replacement": ("actions", 648),
    "coreference-hard": ("coreference", 104),
    "coreference-standard": ("coreference", 708),
    "counting-adversarial": ("counting", 691),
    "counting-hard": ("counting", 868),
    "counting-small-quant": ("counting", 900),
    "existence": ("existence", 505),
    "foil-it": ("foil-it", 943),
    "plurals": ("plurality", 851),
    "relations": ("relations", 535),
}


def lines(right: dict[str, int], ties: dict[str, int] | None = None) -> list[dict]:
    """A line a caption and a foil: so many captions of each instrument score higher, some tie, the others lower."""
    found, number = [], -1
    for instrument, (piece, count) in VALID.items():
        for at in range(count):
            number += 1
            tied = at < (ties or {}).get(instrument, 0)
            foil = 1.0 if tied else 0.25 if at >= count - right[instrument] else 1.5
            about = {"instrument": instrument, "piece": piece}
            found.append({"label": f"{number}_c", "score": 1.0, **about, "type": "caption", "id": number})
            found.append({"label": f"{number}_f", "score": foil, **about, "type": "foil", "id": number})
    return found


def write(path: Path, content: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, content)), encoding="utf-8")  # no line feed at the end
    return path


RIGHT = {name: (at * 37 + 40) % (count - 20) for at, (name, (_, count)) in enumerate(VALID.items())}
MICRO = sum(RIGHT.values()) / 7702
RATES = {name: RIGHT[name] / count for name, (_, count) in VALID.items()}
PIECES = {piece: [RATES[name] for name, (of, _) in VALID.items() if of == piece] for piece, _ in VALID.values()}


def test_three_aggregates_and_eleven_instruments(tmp_path, capsys):
    path = write(tmp_path / "model.jsonl", lines(RIGHT))
    conditions = ("valse/over_7_pieces.text_score,none>0", "valse_plurals.text_score,none>0")
    asserted = [word for one in conditions for word in ("--assert", one)]
    assert main(["score", str(path), "--task", "valse", "-o", str(tmp_path / "x.json"), *asserted]) == 0
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    results, means = document["results"], document["tag_means"]["valse"]
    assert results["valse"]["text_score,none"] == pytest.approx(MICRO, abs=1e-12)
    assert {name: results[f"valse_{name}"]["text_score,none"] for name in VALID} == pytest.approx(RATES, abs=1e-12)
    eleven, seven = (means[name]["numbers"]["text_score,none"] for name in ("over_11_instruments", "over_7_pieces"))
    assert eleven == pytest.approx(np.mean(list(RATES.values())), abs=1e-12)
    assert seven == pytest.approx(np.mean([np.mean(rates) for rates in PIECES.values()]), abs=1e-12)
    assert len({round(one, 6) for one in (MICRO, eleven, seven)}) == 3, "a test in which they are one says nothing"
    assert "valse/over_7_pieces" in shown and "valse_coreference-hard" in shown
    assert set(results) == {"valse", *(f"valse_{name}" for name in VALID)}
    assert document["n-samples"]["valse_existence"]["effective"] == 505


@pytest.mark.slow
def test_order_of_lines_and_further_keys_do_not_matter(tmp_path):
    content = lines(RIGHT)
    mixed = [content[at] for at in np.random.default_rng(0).permutation(len(content))]
    one, other = (
        ttmbench.score(write(tmp_path / f"{name}.jsonl", rows), "valse", bootstrap_iters=0)
        for name, rows in (("a", content), ("b", [{**row, "seconds": 1} for row in mixed]))
    )
    for task, numbers in one.results.items():
        assert numbers["text_score,none"] == other.results[task]["text_score,none"], task
    assert one.document["tag_means"]["valse"]["over_7_pieces"]["numbers"]["text_score,none"] == pytest.approx(
        other.document["tag_means"]["valse"]["over_7_pieces"]["numbers"]["text_score,none"], abs=1e-12
    )


def test_pieces_come_from_the_tasks_and_numbers_may_begin_anew_in_each_instrument(tmp_path):
    bare, first = [], {}
    for row in lines(RIGHT):
        number = row["id"] - first.setdefault(row["instrument"], row["id"])
        bare.append({"label": f"{number}_{row['type'][0]}", "score": row["score"], "instrument": row["instrument"]})
    scored = ttmbench.score(write(tmp_path / "m.jsonl", bare), "valse", bootstrap_iters=0)
    numbers = scored.document["tag_means"]["valse"]["over_7_pieces"]["numbers"]
    assert numbers["text_score,none"] == pytest.approx(np.mean([np.mean(one) for one in PIECES.values()]), abs=1e-12)


def test_one_instrument_and_no_task(tmp_path):
    path = write(tmp_path / "m.jsonl", lines(RIGHT))
    alone = ttmbench.score(path, "valse_foil-it", bootstrap_iters=0)
    assert list(alone.results) == ["valse_foil-it"]
    assert alone.results["valse_foil-it"]["text_score,none"] == RATES["foil-it"]
    assert alone.scores["valse_foil-it"]["none"][0].groups.shape == (943, 1, 2)
    unnamed = ttmbench.score(path, bootstrap_iters=0)
    assert unnamed.results["scores"]["text_score,none"] == pytest.approx(MICRO, abs=1e-12)
    own = write(tmp_path / "own.jsonl", [row for row in lines(RIGHT) if row["instrument"] == "plurals"])
    assert (
        ttmbench.score(own, "valse_plurals", bootstrap_iters=0).results["valse_plurals"]["text_score,none"]
        == (RATES["plurals"])
    )


def test_a_file_without_instruments_has_no_means_over_them(tmp_path):
    bare = [{"label": row["label"], "score": row["score"]} for row in lines(RIGHT)]
    document = ttmbench.score(write(tmp_path / "m.jsonl", bare), "valse", bootstrap_iters=0).document
    assert list(document["results"]) == ["valse"] and "valse" not in document.get("tag_means", {})
    assert any("no means over their values" in note for note in document["notes"]["valse"])


WRONG = {
    "missing": (lambda rows: rows[:-1], "valse", "relations/7701 has no cell c1_i0"),
    "twice": (lambda rows: [*rows, rows[0]], "valse", "actant-swap/0 has caption twice"),
    "label": (lambda rows: [{**rows[0], "label": "0_x"}, *rows[1:]], "valse", "line 1 has label '0_x'"),
    "kind of label": (lambda rows: [rows[0], {**rows[1], "label": "0_c1_i0"}], "valse", "line 2 has label"),
    "type": (lambda rows: [{**rows[0], "type": "foil"}, *rows[1:]], "valse", "label '0_c' and type 'foil'"),
    "tags": (lambda rows: [{**rows[0], "piece": "counting"}, *rows[1:]], "valse", "different tags"),
    "null": (lambda rows: [{**rows[0], "score": None}, *rows[1:]], "valse", "not a number"),
    "count": (lambda rows: rows[:-2], "valse", "valse_relations has 534 groups"),
    "unknown": (lambda rows: [*tagged(rows[:2], "verbs"), *rows[2:]], "valse", "is of no part"),
    "moved": (lambda rows: [*tagged(rows[:2], "existence"), *rows[2:]], "valse", "valse_actant-swap has 948 groups"),
    "not confirmed": (
        lambda rows: [*rows, *tagged([{**row, "label": f"9{row['label']}"} for row in rows[:58]], "existence")],
        "valse_existence",
        "29 of them were not confirmed",
    ),
    "another": (
        lambda rows: [row for row in rows if row["instrument"] == "plurals"],
        "valse_relations",
        "no scores of task 'valse_relations'",
    ),
}


def tagged(rows: list[dict], name: str) -> list[dict]:
    return [{**row, "instrument": name, "piece": name} for row in rows]


@pytest.mark.parametrize(("change", "task", "fact"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(tmp_path, change, task, fact):
    with pytest.raises(DataError, match=fact):
        ttmbench.score(write(tmp_path / "m.jsonl", change(lines(RIGHT))), task, bootstrap_iters=0)


@pytest.mark.skipif(not REAL.exists(), reason="the real outputs are not beside the checkout")
def test_a_published_model_to_the_digit(tmp_path):
    """Table of notebooks/VALSE.ipynb of e-bug/fine-grained-evals: every instrument and the micro mean."""
    with (SHARED / "published" / "published-2.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "clipcap-cc" and row["task"].startswith("valse")]
    assert len(rows) == 12
    scored = ttmbench.score(REAL, "valse", bootstrap_iters=0)
    for row in rows:
        task = "valse" if row["task"] == "valse_all_micro" else row["task"]
        assert f"{100 * scored.results[task]['text_score,none']:.1f}" == row["percent"], task
    assert {task: ties["text_score,none"] for task, ties in scored.document["ties"].items()} == {
        task: 0 for task in scored.results
    }


@pytest.mark.slow
def test_samples_of_a_run_state_their_tags_too(tmp_path):
    """A task's means over tags are made again from its samples, for every method."""
    rows = []
    for number, row in enumerate(lines(RIGHT)[::2]):
        tags = {"instrument": row["instrument"], "piece": row["piece"]}
        for name, scores in (("none", [[1.0, 0.5]]), ("ttm", [[1.0, 0.5 + number % 2]])):
            about = {"group_id": f"{number}", "method": name, "seed_index": 0}
            rows.append({**about, "scores": scores, "tags": tags})
    path = write(tmp_path / "samples.jsonl", rows)
    scored = ttmbench.score(path, "valse", bootstrap_iters=0)
    means = scored.document["tag_means"]["valse"]["over_11_instruments"]["numbers"]
    assert means["text_score,none"] == pytest.approx(1) and means["text_score,ttm"] == pytest.approx(0.5, abs=0.01)
    assert len(scored.results) == 12 and scored.results["valse_plurals"]["text_score,none"] == 1
    assert list(ttmbench.score(path, "valse_plurals", bootstrap_iters=0).results) == ["valse_plurals"]
