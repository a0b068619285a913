"""A dose of the fuzzer, the proof that it finds what it looks for, and the files on which it found something once."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fuzz_formats
import fuzzing
import numpy as np
import pytest
from support import processes

ROWS = next(one for one in fuzz_formats.FORMATS if one.name == "rows CSV")


def test_two_hundred_broken_files_of_every_format(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    report = tmp_path / "report.json"
    words = ["fuzz", "--in_this_process", "--files", "200", "--seed", "7", "--json", str(report)]
    done = processes.run(
        [Path(fuzzing.__file__).with_name("faults.py"), *words], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    *rows, total = json.loads(report.read_text())["rows"]
    assert len(rows) == 27 and all(row["files"] == row["accepted"] + row["refused"] for row in rows)
    assert total["files"] == 200 and total["accepted"] > 20 and total["refused"] > 70
    for name in ("tracebacks", "wrong numbers", "touched outside", "too long or large"):
        assert total[name] == 0, rows


def test_the_same_seed_breaks_the_same_files():
    for one in fuzz_formats.FORMATS:
        if one.name in ("parquet", "tar", "zip", "scores npz", "embeddings npz", "embeddings model"):
            continue  # their writers note the time
        draw = fuzzing._draw
        assert draw(one, random.Random("3")) == draw(one, random.Random("3")), one.name
        assert len({draw(one, random.Random(str(n)))[0] for n in range(8)}) > 4, one.name


def connect():
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", 9))


PLANTED = {
    "opens": ("touched outside", lambda base: (base / "sentinel" / "secret.txt").read_text()),
    "writes": ("touched outside", lambda base: (base / "new.txt").write_text("x")),
    "starts": ("touched outside", lambda base: subprocess.run([sys.executable, "-c", ""], check=True)),
    "connects": ("touched outside", lambda base: connect()),
    "never ends": ("too long or large", lambda base: [None for _ in iter(int, 1)]),
    "takes memory": ("too long or large", lambda base: np.ones(1 << 28)),
    "raises": ("tracebacks", lambda base: {"tracebacks": ["x"]}),
    "miscounts": ("wrong numbers", lambda base: {"wrong": ["x"]}),
}


@pytest.mark.parametrize("what", PLANTED)
def test_the_fuzzer_sees_what_it_looks_for(monkeypatch, what):
    column, act = PLANTED[what]
    calls = iter(range(10**6))

    def put(folder: Path, content: bytes):
        result = act(folder.parents[1]) if next(calls) >= 2 else None  # the two valid files come first
        return fuzz_formats.Outcome(accepted=True, **(result if isinstance(result, dict) else {}))

    monkeypatch.setattr(fuzzing, "SECONDS", 0.3)
    row = fuzzing.fuzz(replace(ROWS, put=put, neutral=None), 2, 0)
    assert row[column] == 2 and row["files"] == 2 and row["faults"]


def test_a_change_without_meaning_that_changes_something_is_seen():
    one, outcome = ROWS, fuzz_formats.Outcome
    broken = replace(one, put=lambda folder, content: outcome(True, numbers=hash(content)))
    assert fuzzing.fuzz(broken, 40, 0)["wrong numbers"] >= 1


def test_a_valid_file_that_is_refused_stops_the_fuzzer():
    with pytest.raises(RuntimeError, match="a valid file of rows CSV"):
        fuzzing.fuzz(replace(ROWS, put=lambda *_: fuzz_formats.Outcome()), 2, 0)


def test_naive_metrics_are_those_of_the_package():
    from ttmbench import metrics

    table = np.random.RandomState(0).randint(0, 4, (300, 2, 2)).astype(np.float64)
    for name, value in fuzz_formats.naive_metrics(table).items():
        assert float(value) == getattr(metrics, name)(table).mean(), name


FOUND = [  # format, and what in a valid file is replaced by what
    ("scores safetensors", b"scores.none.0", b"scores.nome.0"),
    ("compared JSONL", b'"text_score": 1.0', b'"text_score": 1' + b"0" * 400),
]


@pytest.mark.parametrize(("name", "old", "new"), FOUND, ids=["a filter beside none", "a number beyond floats"])
def test_files_on_which_something_was_found_once(name, old, new, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (one,) = (one for one in fuzz_formats.FORMATS if one.name == name)
    good = one.make(random.Random(0))
    assert old in good
    outcome = one.put(tmp_path, good.replace(old, new))
    assert not outcome.accepted and not outcome.tracebacks and outcome.said.count("\n") == 1, outcome
