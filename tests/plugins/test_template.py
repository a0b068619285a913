"""``ttmbench new adapter``, ``new method`` and ``new plugin``: packages that work as they are written."""

from __future__ import annotations

import importlib
import sys
import tomllib

import pytest

from ttmbench import simple_evaluate
from ttmbench.cli import main


@pytest.fixture
def made(tmp_path, monkeypatch, capsys):
    """Writes a package, and imports what its entry point names and its tests, as if it were installed."""

    def make(what, name):
        assert main(["new", what, name, "-o", str(tmp_path / "made folder")]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        folder, module = tmp_path / "made folder", name.replace("-", "_")
        points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]["ttmbench"]
        monkeypatch.syspath_prepend(folder)
        ((_, target),) = points.items()
        plugin, tests = importlib.import_module(target), importlib.import_module(f"test_{module}")
        for one in [one for key, one in vars(tests).items() if key.startswith("test_")]:
            one()
        return plugin, [line.strip() for line in shown.out.splitlines()[1:]]

    before = set(sys.modules)
    yield make
    for module in set(sys.modules) - before:
        if "invented" in module:
            del sys.modules[module]


def test_an_adapter(made):
    plugin, commands = made("adapter", "invented-model")
    assert commands[-1] == "ttmbench --model invented-model --tasks shapes_replace"
    done = simple_evaluate("invented-model", "shapes_replace", limit=8, plugins=[("mine", plugin)], use_cache="off")
    assert done.results["shapes_replace"]["group_score,none"] > 0


def test_a_method(made, capsys):
    plugin, commands = made("method", "invented-method")
    assert commands[-1] == "ttmbench --model tiny-clip --tasks shapes_color --methods invented_method"
    options = {"limit": 8, "plugins": [("mine", plugin)], "use_cache": "off", "methods": ["invented_method"]}
    done = simple_evaluate("tiny-clip", "shapes_color", method_args={"invented_method.images": 4}, **options)
    assert done.results["shapes_color"]["group_score,invented_method"] is not None
    assert capsys.readouterr().out == ""


def test_a_plugin(made, capsys):
    plugin, commands = made("plugin", "invented")
    assert commands[-1] == "ttmbench --model tiny-clip --tasks invented_colors"
    done = simple_evaluate("tiny-clip", "invented_colors", limit=4, plugins=[("mine", plugin)], use_cache="off")
    assert done.results["invented_colors"]["invented_clear_match,none"] is not None
    assert capsys.readouterr().out == "invented: done None\n"


@pytest.mark.parametrize("name", ["1st", "my.model", "class", "numpy", "../up"])
def test_names_that_no_package_can_have(tmp_path, capsys, name):
    assert main(["new", "adapter", name, "-o", str(tmp_path / "x")]) == 2
    assert "name" in capsys.readouterr().err and not (tmp_path / "x").exists()
