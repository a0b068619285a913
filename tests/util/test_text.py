"""YAML is read by libyaml where it is there, and by PyYAML alone where it is not: alike."""

from __future__ import annotations

from pathlib import Path

import pytest

import ttmbench.tasks
from ttmbench._util import text


def test_both_readers_of_yaml_give_the_same_values(monkeypatch):
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(ttmbench.tasks.__path__[0]).glob("*.yaml"))]
    assert len(texts) > 60
    fast = [text.parse_yaml(one) for one in texts]
    monkeypatch.setattr(text, "_FastLoader", None)
    assert repr([text.parse_yaml(one) for one in texts]) == repr(fast)


@pytest.mark.parametrize(
    "wrong", ["a: [1", "a: 1\na: 2", "a: &x 1\nb: *x", "a: !!python/name:os.system x", "a: \t- b", "[" * 60]
)
def test_what_is_no_yaml_is_told_alike_by_both_readers(wrong, monkeypatch):
    def told():
        with pytest.raises(text.Unreadable) as error:
            text.parse_yaml(wrong)
        return str(error.value)

    fast = told()
    monkeypatch.setattr(text, "_FastLoader", None)
    assert told() == fast
