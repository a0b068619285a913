"""The typed results document: the shipped JSON Schema is the model's, and the model is at least as strict."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError
from support.checkout import load_script
from support.documents import full_document, schema, whole_document

from ttmbench.results.document import ResultsDocument, keys_by_task

ROOT = Path(__file__).resolve().parents[2]
VALUES = (*(None, True, 0, -1, 1.5, "x", [], [1], {}),)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything below a value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def mutations(document: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every place with another value, without it, or with a key beside it; they share what is not on the way there."""
    for path in places(document):
        for value in (..., "another key", *VALUES):
            parent = changed = copy.copy(document)
            for part in path[:-1]:
                parent[part] = copy.copy(parent[part])
                parent = parent[part]
            if value is ...:
                del parent[path[-1]]
            elif value == "another key":
                if not isinstance(parent, dict):
                    continue
                parent["Another Key"] = parent[path[-1]]
            else:
                parent[path[-1]] = value
            yield path, changed


def test_the_shipped_schemas_are_those_of_the_models():
    script = load_script("docs/schema")
    for name, text in script.texts().items():
        assert (script.FOLDER / name).read_text(encoding="utf-8") == text, "run scripts/docs/schema.py"
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_the_full_document_has_every_key():
    assert set(full_document()) == set(schema("results")["properties"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "results" / "reference").glob("[bf]*.json")), ids=lambda path: path.name
)
def test_schema_and_model_take_the_reference_results(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    typed = ResultsDocument.model_validate(document)
    assert typed.model_dump(by_alias=True, exclude_unset=True) == document, "nothing is lost, and 0 stays 0"


@functools.cache
def validator(key: str) -> jsonschema.Draft202012Validator:
    """The schema without the properties other than one key, for documents of which the others are known to fit."""
    whole = schema("results")
    properties = {name: about if name == key else True for name, about in whole["properties"].items()}
    return jsonschema.Draft202012Validator({**whole, "properties": properties})


def test_the_model_takes_nothing_that_its_schema_refuses():
    jsonschema.Draft202012Validator(schema("results")).validate(full_document())
    verdicts = []
    for path, document in mutations(full_document()):
        fits = validator(path[0]).is_valid(document)
        verdicts.append(fits)
        try:
            ResultsDocument.model_validate(document)
        except ValidationError as error:
            # 1.0 is an integer for a JSON Schema; the rest is what no schema can say: a task that is half there, a
            # group match of 1.5, a version below 0.
            assert not fits or {one["type"] for one in error.errors()} & {"value_error", "int_type"}, (path, error)
        else:
            assert fits, path
    assert len(verdicts) > 1500 and 100 < sum(verdicts) < len(verdicts) - 500


@pytest.mark.parametrize(
    ("results", "changes", "message"),
    [
        ({"t": {"group_match,none": 1.5}}, {}, "less than or equal to 1"),
        ({"t": {"mine_stderr,none": -0.1}}, {}, "greater than or equal to 0"),
        ({"t": {"mine,none": 1e301}}, {}, "less than or equal to 1"),
        ({"t": {"mine,none": float("nan")}}, {}, "finite number"),
        ({"t": {"mine,none": True}}, {}, "valid"),
        ({"t": {}}, {"versions": {}}, "'versions' lacks task 't'"),
        ({"t": {}}, {"versions": {"t": -1}}, "greater than or equal to 0"),
        ({"t": {}}, {"n-samples": {"t": {"original": 2**53, "effective": 1}}}, "less than 9007199254740992"),
        ({"t": {}}, {"date": 1e200}, "date\n.*less than"),
        ({"t": {}}, {"baseline": None}, "is omitted, not null"),
    ],
)
def test_what_no_schema_can_say(results, changes, message):
    with pytest.raises(ValidationError, match=message):
        ResultsDocument.model_validate(whole_document(results, **changes))


def test_keys_that_hold_an_entry_a_task():
    found = keys_by_task()
    assert len(found) == 23 and found[:2] == ["tracks", "results"] and {"n-shot", "methods", "timing"} <= set(found)
    assert "group_subtasks" not in found and "packages" not in found
