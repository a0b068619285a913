"""YAML is read alike with and without libyaml; JSON lines name the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import ttmbench.tasks
from ttmbench._util import text
from ttmbench.cli import main
from ttmbench.errors import DataError


def test_both_readers_of_yaml_give_the_same_values(monkeypatch):
    paths = sorted(Path(ttmbench.tasks.__path__[0]).glob("*.yaml"))
    assert len(paths) > 60
    fast = [text.read_yaml(path) for path in paths]
    monkeypatch.setattr(text, "_LOADERS", [text._PlainLoader])
    assert repr([text.read_yaml(path) for path in paths]) == repr(fast)


@pytest.mark.parametrize(
    "wrong", ["a: [1", "a: 1\na: 2", "a: &x 1\nb: *x", "a: !!python/name:os.system x", "a: \t- b", "[" * 60]
)
def test_what_is_no_yaml_is_told_alike_by_both_readers(wrong, monkeypatch, tmp_path):
    (tmp_path / "x.yaml").write_text(wrong, encoding="utf-8")

    def told():
        with pytest.raises(text.Unreadable) as error:
            text.read_yaml(tmp_path / "x.yaml")
        return str(error.value)

    fast = told()
    monkeypatch.setattr(text, "_LOADERS", [text._PlainLoader])
    assert told() == fast


def test_a_line_beyond_the_limit_is_refused_before_it_is_parsed(folder_task, monkeypatch, capsys):
    monkeypatch.setenv("TTMBENCH_LIMITS", "line_bytes=1000")
    parsed = []
    parse = text.parse_json
    monkeypatch.setattr(text, "parse_json", lambda line, **more: parsed.append(len(line)) or parse(line, **more))
    folder = folder_task()
    with (folder / "groups.jsonl").open("a") as file:
        file.write('{"id": "' + "x" * 10_000 + '"}\n')
    assert main(["validate", str(folder / "mine.yaml")]) == 4
    says = "groups.jsonl: line 7 is longer than 1000 bytes; TTMBENCH_LIMITS=line_bytes=N raises the limit"
    assert says in capsys.readouterr().out and max(parsed) < 1000


def test_lines_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes('\ufeff{"a": "\u2028é"}\r\n\n{"a": 2}'.encode())
    assert list(text.read_json_lines(path)) == [(1, {"a": "\u2028é"}), (3, {"a": 2})]


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
            list(text.read_json_lines(path))
    with pytest.raises(DataError, match="Is a directory"):
        list(text.read_json_lines(tmp_path))
