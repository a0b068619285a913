"""Results documents from disk: what is read, and what is refused and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.documents import full_document, schema

from ttmbench.errors import DataError
from ttmbench.report.board import merge
from ttmbench.results.reader import read_document, walk_documents

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference" / "first.json"


@pytest.fixture
def document():
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


def write(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_document_of_this_version_is_read_as_it_is(document):
    assert read_document(REFERENCE).to_dict() == document


def test_a_newer_minor_version_is_read_without_what_it_adds(tmp_path):
    """Keys that this version does not know are left out, in lists and below them too; the others are checked."""
    newer = full_document() | {"schema_version": "1.7", "moon_phase": "full"}
    newer["methods"]["t"]["ttm"]["weather"] = {}
    newer["methods"]["t"]["ttm"]["iterations"][0]["mood"] = 1
    read = read_document(write(tmp_path / "x.json", newer))
    assert read.methods["t"]["ttm"].iterations[0].coverage == 0.5 and read.to_dict() == full_document()
    del newer["tracks"]
    with pytest.raises(DataError, match=r"x\.json: .*'tracks' is missing"):
        read_document(write(tmp_path / "x.json", newer))


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("2.0", "schema 2.0, which is newer than 1.x; upgrade ttmbench"),
        ("0.9", "schema 0.9, which is older than 1.x"),
        ("one", "schema 'one', which is not a version"),
        (1, "schema '1', which is not a version"),
        (None, "schema 'None', which is not a version"),
    ],
)
def test_other_versions_are_refused_with_a_reason(tmp_path, document, version, why):
    with pytest.raises(DataError) as error:
        read_document(write(tmp_path / "x.json", {**document, "schema_version": version}))
    assert why in str(error.value) and str(error.value).startswith(f"{tmp_path / 'x.json'}: ")


@pytest.mark.parametrize("key", schema("results")["required"])
def test_every_required_key_is_missed_by_name(tmp_path, document, key):
    del document[key]
    with pytest.raises(DataError, match=f"schema_version|'{key}'"):
        read_document(write(tmp_path / "x.json", document))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"results": {"shapes_color": {"group_match,none": "0.5"}}}, "results.shapes_color.group_match,none"),
        ({"results": {"shapes_color": {"group_match,none": 1.5}}}, "less than or equal to 1"),
        ({"versions": {}}, "'versions' lacks task 'shapes_color'"),
        ({"n-samples": {"shapes_color": {}}}, "n-samples.shapes_color.original"),
        ({"mood": 1}, "unknown key 'mood'"),
        ({"date": 1e200}, "'date': must be less than"),
    ],
)
def test_what_is_there_but_of_another_kind(tmp_path, document, change, key):
    with pytest.raises(DataError) as error:
        read_document(write(tmp_path / "x.json", {**document, **change}))
    assert key in str(error.value)


def test_files_that_are_no_json(tmp_path):
    for content, why in (
        (b"", "is not JSON"),
        (b"\x80\x02}q\x00", "not UTF-8 text"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"schema_version": "1.0", "date": NaN}', "NaN is not a"),
        (b"[1, 2]", "a JSON list, not an object"),
        (b"{}", "has no schema_version"),
    ):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(DataError, match=why):
            read_document(tmp_path / "x.json")
    with pytest.raises(DataError, match=r"absent\.json: cannot be read"):
        read_document(tmp_path / "absent.json")


def test_bad_files_are_named_and_the_rest_read(tmp_path, document):
    for number in range(20):
        folder = tmp_path / f"model{number % 7}"
        folder.mkdir(exist_ok=True)
        write(folder / f"{number:03}.json", {**document, "model_name": f"model{number}"})
    truncated, binary, old, new = (sorted(tmp_path.rglob("*.json"))[index] for index in (3, 8, 12, 19))
    truncated.write_bytes(truncated.read_bytes()[:5000])
    binary.write_bytes(bytes(range(256)) * 40)
    write(old, {**document, "schema_version": "0.9"})
    write(new, {**document, "schema_version": "2.0"})
    (tmp_path / "leaderboard.json").write_text('{"kind": "leaderboard"}')
    (tmp_path / ".results.state").mkdir()
    (tmp_path / ".results.state" / "tasks.json").write_text("{}")
    found = list(walk_documents(tmp_path))
    assert len(found) == 20 and sum(not isinstance(one, str) for _, one in found) == 16
    reasons = {path: why for path, why in found if isinstance(why, str)}
    assert set(reasons) == {truncated, binary, old, new}
    assert "is not JSON (" in reasons[truncated] and "UTF-8" in reasons[binary]
    assert "schema 0.9" in reasons[old] and "schema 2.0" in reasons[new]
    board = merge(tmp_path)
    assert len({row.model for row in board.rows}) == 16
    assert board.skipped == {path.relative_to(tmp_path).as_posix(): why for path, why in reasons.items()}


@pytest.mark.parametrize("kind", ["sweep", "leaderboard"])
def test_summaries_of_documents_are_none_and_nothing_is_said_of_them(tmp_path, kind):
    (tmp_path / "x.json").write_text(json.dumps({"schema_version": "1.0", "kind": kind}), encoding="utf-8")
    assert list(walk_documents(tmp_path)) == []
