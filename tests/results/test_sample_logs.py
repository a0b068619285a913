"""Sample logs of lm-evaluation-harness and lmms-eval: compared, reported and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ttmbench import stats
from ttmbench.cli import main
from ttmbench.errors import DataError
from ttmbench.results.comparison import read_run
from ttmbench.results.reader import read_document, read_sample_log

LMMS, HARNESS = "20260923_172512_samples_mme.jsonl", "samples_gsm8k_2026-07-03T14-50-12.123456.jsonl"
RIGHT = {"a": [1, 0, 0, 1, 0, 0, 1, 0], "b": [1, 1, 1, 1, 0, 0, 1, 1]}


def lmms(folder: Path, right: list[int], images: int = 2) -> Path:
    """A log as lmms-eval writes it; so many documents in a row share an image."""
    lines = []
    for at, score in enumerate(right):
        image = f"code/{at // images:04d}.png"
        lines.append(
            {
                **{"doc_id": at, "target": "Yes", "filtered_resps": "Yes", "token_counts": [{"output_tokens": 2}]},
                **{"doc_hash": "74234e98", "input_media": [image], "input": "Is it?"},
                "mme_cognition_score": {"question_id": image, "category": "code", "score": float(score)},
            }
        )
    return write(folder / LMMS, lines)


def harness(folder: Path, right: list[int], filters: tuple[str, ...] = ("strict-match", "flexible-extract")) -> Path:
    """A log as lm-evaluation-harness writes it: a line a document and filter."""
    lines = [
        {
            **{"doc_id": at, "doc": {"question": f"{at}?"}, "target": "18", "resps": [["x"]], "filtered_resps": ["x"]},
            **{"arguments": {"gen_args_0": {"arg_0": f"Q: {at}?", "arg_1": {"until": []}}}, "filter": name},
            **{"metrics": ["exact_match"], "doc_hash": f"h{at}", "prompt_hash": "p", "target_hash": "t"},
            "exact_match": float(score),
        }
        for at, score in enumerate(right)
        for name in filters
    ]
    return write(folder / HARNESS, lines)


def write(path: Path, lines: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_two_logs_are_paired_by_document_and_clustered_by_image(tmp_path, capsys):
    paths = [lmms(tmp_path / f"org__{model}", right) for model, right in RIGHT.items()]
    assert main(["compare", *map(str, paths), "-o", str(tmp_path / "x.json")]) == 0
    shown = capsys.readouterr().out
    assert "org/a -> org/b" in shown and "8 groups in 4 clusters" in shown
    (row,) = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["comparisons"][0]["rows"]
    before, after = (np.array(right, float) for right in RIGHT.values())
    assert (row["task"], row["metric"], row["baseline"], row["other"]) == ("mme", "mme_cognition_score", 3 / 8, 6 / 8)
    assert row["clusters"] == 4 and row["won"] == ["1", "2", "7"] and row["lost"] == []
    assert row["p"] == stats.mcnemar(before > 0, after > 0, np.repeat(np.arange(4), 2))


def test_a_filter_is_behind_the_name_of_its_metric(tmp_path, capsys):
    for model, right in RIGHT.items():
        harness(tmp_path / model, right)
    results = {"model_name": "org/first", "results": {"gsm8k": {"exact_match,strict-match": 0.375}}}
    (tmp_path / "a" / "results_2026-07-03T14-50-12.123456.json").write_text(json.dumps(results), encoding="utf-8")
    document = read_document(tmp_path / "a" / HARNESS)
    assert document.model_name == "org/first"
    assert document.results["gsm8k"]["exact_match_strict_match,none"] == 3 / 8
    assert read_run(tmp_path / "b" / HARNESS).groups["gsm8k"].values["none"]["exact_match_flexible_extract"]["4"] == 0.0
    assert main(["compare", str(tmp_path), "--metrics", "exact_match_strict_match"]) == 0
    assert "org/first -> b" in capsys.readouterr().out


def test_a_page_and_a_table_of_logs(tmp_path, capsys):
    for model, right in RIGHT.items():
        lmms(tmp_path / model, right)
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "mme_cognition_score" in page and "code/0003.png" in page
    assert main(["export", str(tmp_path / "a"), "--to", "numbers"]) == 0
    assert "mme,mme_cognition_score,none,raw,zero_shot,0.375" in capsys.readouterr().out


def test_other_documents_are_not_paired(tmp_path, capsys):
    one, other = lmms(tmp_path / "a", RIGHT["a"]), lmms(tmp_path / "b", RIGHT["b"][:6])
    assert main(["compare", str(one), str(other)]) == 2
    assert "they are not the same groups" in capsys.readouterr().err
    assert main(["compare", str(one), str(other), "--allow_different"]) == 0
    assert "6 of 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([{"doc_id": 0, "target": "a", "ppl": 7.5}], "no metric is a fraction"),
        ([{"doc_id": 0, "target": "a", "acc": 1}] * 2, "has doc_id '0' again"),
        ([{"doc_id": 0, "target": "a", "acc": 1}, {"target": "b", "acc": 0}], "line 2 has no doc_id"),
        ([{"doc_id": 0, "target": "a", "acc": 1}, {"doc_id": 1, "target": "b"}], "of every document"),
    ],
)
def test_what_is_no_log_is_named(tmp_path, lines, expected):
    with pytest.raises(DataError, match=expected):
        read_sample_log(write(tmp_path / "samples_x.jsonl", lines))
