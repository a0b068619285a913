"""Test-time methods on the command line: listed, shown, completed."""

from __future__ import annotations

import json

import pytest

from ttmbench.cli import main
from ttmbench.cli.method_page import print_page
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import build_registry
from ttmbench.types import MethodSpec

METHODS = {name: spec for name, (spec, _) in build_registry().methods.items()}


def printed(capsys, *words: str) -> str:
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_the_list_fits_a_terminal_and_long_has_every_column(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, long = printed(capsys, "ls", "methods"), printed(capsys, "ls", "methods", "--long")
    assert short.split()[:6] == ["method", "needs", "scope", "trains", "reference", "track"]
    assert max(map(len, [*short.splitlines(), *long.splitlines()])) <= 80
    assert len(short.splitlines()) == 2 + len(METHODS), "a line a method"
    assert all(word in long for word in ("assumes matching", "order dependent", "summary", "upper bound: TTM"))


def test_json_has_objects_with_a_name(capsys):
    rows = {row["name"]: row for row in json.loads(printed(capsys, "ls", "methods", "--json"))}
    assert set(rows) == set(METHODS)
    assert rows["oracle"]["needs"] == ["gradients", "labels"] and rows["oracle"]["track"] == "oracle"
    assert rows["ttm"]["trains"] is True and rows["ttm"]["reset"] == "never" and rows["ttm"]["plugin"] == "ttmbench"


@pytest.mark.parametrize("name", METHODS)
def test_a_page_says_what_a_method_is(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = printed(capsys, "show", name, "--long")
    assert max(map(len, page.splitlines())) <= 80
    assert page.startswith(f"{name}: ") and "paper " in page and METHODS[name].reference in page
    for word in ("uses ", "scope ", "model ", "order ", "matching ", "scores ", "track ", "baseline ", "argument"):
        assert f"\n{word}" in page, word
    shown = json.loads(printed(capsys, "show", name, "--json"))
    assert shown["name"] == name and shown["track"] == METHODS[name].track
    assert all(row["name"] in page for row in shown["arguments"])
    assert all(set(row) == {"name", "allowed", "default", "required", "source"} for row in shown["arguments"])


def test_arguments_of_ttm_are_those_of_ttm_args(capsys):
    assert "--ttm_args NAME=VALUE" in printed(capsys, "show", "ttm")
    assert "ttmbench finetune --finetune_args NAME=VALUE" in printed(capsys, "show", "finetuned")
    for name in ("sinkhorn", "selftrain"):
        assert f"--method_args {name}.NAME=VALUE" in printed(capsys, "show", name)


def test_a_method_whose_function_is_missing_is_one_line():
    with pytest.raises(UsageError, match=r"^ttmbench\.methods\.task:gone does not exist: "):
        print_page(MethodSpec("made", "ttmbench.methods.task:gone"), "mine")


def test_an_unknown_name_may_be_a_methods(capsys):
    assert main(["show", "sinkhron"]) == 2
    assert "unknown task, model, method or metric 'sinkhron'; did you mean 'sinkhorn'" in capsys.readouterr().err
