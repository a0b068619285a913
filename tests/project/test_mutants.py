"""The operators of `make mutants` on a few lines of source, and what its report says."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from support.checkout import ROOT, load_script

SOURCE = b'''"""A module."""
LIMIT = 3
CODE_VERSION = 1

@cached(maxsize=4)
def f(a: int | None, b, *, flag=True):
    """Text: 1 < 2."""
    if not a < b <= 2 and flag:
        raise ValueError(f"{a + 1}")
    assert a != 0
    a = check(a)
    total = -b[-1]
    total += a * 0.5
    x = (
        a
        - b
    )
    if isinstance(a, int | str) and a is not None:
        return a & ~b
    for one, two in zip(a, b, strict=True):
        continue
    self.rest = a not in b
    return None
'''
EXPECTED = {
    "comparison": {
        "if not a < b <= 2 and flag: -> if not (a <= b <= 2) and flag:",
        "if not a < b <= 2 and flag: -> if not (a < b < 2) and flag:",
        "if isinstance(a, int | str) and a is not None: -> if isinstance(a, int | str) and (a is None):",
        "self.rest = a not in b -> self.rest = (a in b)",
    },
    "arithmetic": {
        "total = -b[-1] -> total = (b[-1])",
        "total = -b[-1] -> total = -b[(1)]",
        "total += a * 0.5 -> total -= a * 0.5",
        "total += a * 0.5 -> total += (a / 0.5)",
        "a - b -> (a + b )",
    },
    "constant": {
        "LIMIT = 3 -> LIMIT = 4",
        "if not a < b <= 2 and flag: -> if not a < b <= 3 and flag:",
        "def f(a: int | None, b, *, flag=True): -> def f(a: int | None, b, *, flag=False):",
        "total += a * 0.5 -> total += a * 1.0",
        "total = -b[-1] -> total = -b[(0)]",
    },
    "boolean": {
        "if not a < b <= 2 and flag: -> if (not a < b <= 2 or flag):",
        "if not a < b <= 2 and flag: -> if (a < b <= 2) and flag:",
        "if isinstance(a, int | str) and a is not None: -> if (isinstance(a, int | str) or a is not None):",
        "return a & ~b -> return (a | ~b)",
        "return a & ~b -> return a & (b)",
    },
    "statement": {
        'raise ValueError(f"{a + 1}") -> pass',
        "a = check(a) -> pass",
        "total += a * 0.5 -> pass",
        "return a & ~b -> pass",
        "continue -> pass",
        "self.rest = a not in b -> pass",
        "return None -> pass",
    },
}


@pytest.fixture
def mutations():
    return load_script("mutation_operators")


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return load_script("mutants")


def test_every_operator_changes_one_place_and_nothing_else_is_changed(mutations):
    found = mutations.mutants_of("m.py", SOURCE)
    by_operator = {name: {f"{one.before} -> {one.after}" for one in found if one.operator == name} for name in EXPECTED}
    assert by_operator == EXPECTED and len(found) == sum(map(len, EXPECTED.values()))
    for one in found:
        changed = one.apply(SOURCE)
        ast.parse(changed)
        assert changed.count(b"\n") == SOURCE.count(b"\n"), "lines keep their numbers"
        assert one.place == ("" if one.before.startswith("LIMIT") else "f")
        assert sum(a != b for a, b in zip(changed.splitlines(), SOURCE.splitlines(), strict=True)) <= 3


def test_a_mutant_is_known_after_lines_have_moved(mutations):
    first, moved = (mutations.mutants_of("m.py", before + SOURCE) for before in (b"", b"# \xc3\xa9\n\n"))
    assert [one.key for one in first] == [one.key for one in moved]
    assert [one.line + 2 for one in first] == [one.line for one in moved]
    twice = mutations.mutants_of("m.py", b"def f():\n    if a:\n        return 1\n    return 1\n")
    assert Counter(one.place for one in twice) == {"f": 2, "f #2": 2}, "lines that read alike are numbered"


def test_the_core_is_mutated_and_its_tests_exist(mutants):
    files = mutants.files()
    for name in ("metrics", "matching", "chance", "schedules", "stats", "_arrays/assignment", "evaluator/run_key"):
        assert f"ttmbench/{name}.py" in files
    assert {"ttmbench/ttm/trainer.py", "ttmbench/cache/key.py"} < set(files)
    assert not [name for name in files if name.endswith(("checkpoint.py", "analysis.py"))]
    for tests in {one for stages in files.values() for stage in stages for one in stage}:
        assert (ROOT / tests).exists(), tests


def test_every_survivor_needs_a_reason_and_95_percent_are_caught(mutants, mutations, capsys):
    every = mutations.mutants_of("m.py", SOURCE)[:20]
    outcome = dict.fromkeys(every, "caught")
    assert mutants.report(outcome, {}, 7) == 0
    outcome[every[0]] = "slow"
    outcome[every[1]] = "survived"
    assert mutants.report(outcome, {}, 7) == 1
    said = capsys.readouterr().out
    assert "Survivors without a reason: 1" in said and f"m.py:{every[1].line} in f" in said
    assert mutants.report(outcome, {every[1].key: "it is the same"}, 7) == 0
    said = capsys.readouterr().out
    assert "seed 7: caught 19 of 20 mutants, 95.0% (1 by the time limit)" in said and "19 of 19, 100.0%" in said
    assert "because it is the same" in said and f"  - {every[1].before}\n  + {every[1].after}" in said
    outcome[every[2]] = "survived"
    assert mutants.report(outcome, {one.key: "so" for one in every}, 7) == 1, "90 % are too few, whatever the reasons"


def test_every_equivalent_mutant_has_its_reason(mutants):
    for key, reason in mutants.read_equivalent().items():
        assert len(key) == 4 and key[0] in mutants.files() and key[2] != key[3] and len(reason) > 20, key
