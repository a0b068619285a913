"""JSON lines: which line is wrong, and how long one may be."""

from __future__ import annotations

import pytest

from ttmbench._util import jsonl
from ttmbench._util.jsonl import read_json_lines
from ttmbench.cli import main
from ttmbench.errors import DataError


def test_a_line_beyond_the_limit_is_refused_before_it_is_parsed(folder_task, monkeypatch, capsys):
    monkeypatch.setenv("TTMBENCH_LIMITS", "line_bytes=1000")
    parsed = []
    parse = jsonl.parse_json
    monkeypatch.setattr(jsonl, "parse_json", lambda text, **more: parsed.append(len(text)) or parse(text, **more))
    folder = folder_task()
    with (folder / "groups.jsonl").open("a") as file:
        file.write('{"id": "' + "x" * 10_000 + '"}\n')
    assert main(["validate", str(folder / "mine.yaml")]) == 4
    says = "groups.jsonl: line 7 is longer than 1000 bytes; TTMBENCH_LIMITS=line_bytes=N raises the limit"
    assert says in capsys.readouterr().out and max(parsed) < 1000


def test_lines_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes('\ufeff{"a": "\u2028é"}\r\n\n{"a": 2}'.encode())
    assert list(read_json_lines(path)) == [(1, {"a": "\u2028é"}), (3, {"a": 2})]


def test_what_is_wrong_names_the_line(tmp_path):
    path = tmp_path / "x.jsonl"
    for content, says in (
        (b'{"a": 1}\n[1]\n', "line 2 is not a JSON object"),
        (b'{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "is not UTF-8 text"),
        (b'{"a": "\xff"}\n', "is not UTF-8 text"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=says):
            list(read_json_lines(path))
    with pytest.raises(DataError, match="Is a directory"):
        list(read_json_lines(tmp_path))
