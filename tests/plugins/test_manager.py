"""What plugins register is checked when they register it, and what they compute when it is computed."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ttmbench import AdapterSpec, MethodSpec, MetricSpec, ScheduleSpec, SourceSpec, hookimpl, simple_evaluate
from ttmbench.cli import main
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.methods.settings import arguments
from ttmbench.plugins.registry import build_registry, problem_of


def ones(scores):
    return np.ones(len(scores))


METRIC = MetricSpec("good", ones)
ADAPTER = AdapterSpec("good", "module:load")
SOURCE = SourceSpec("good", "module:read")
SCHEDULE = ScheduleSpec("good", np.linspace)
METHOD = MethodSpec("good", "module:method")
TRAINED = MethodSpec("good", "module:method", needs=("gradients",), reset="never")


def plugin_of(*specs):
    """A plugin that registers specifications through the hook of their kind."""
    kinds = {
        AdapterSpec: "ttmbench_register_adapters",
        SourceSpec: "ttmbench_register_sources",
        MetricSpec: "ttmbench_register_metrics",
        ScheduleSpec: "ttmbench_register_schedules",
        MethodSpec: "ttmbench_register_methods",
    }
    return type("Made", (), {kinds[type(specs[0])]: hookimpl(lambda self: list(specs))})()


WRONG = [
    (METRIC, {"track": "zeroshot"}, "'track': must be 'zero_shot'"),
    (METRIC, {"name": "my metric"}, "a name is made of letters, digits and _, got 'my metric'"),
    (METRIC, {"name": "x_stderr"}, "a name cannot end in _stderr"),
    (ADAPTER, {"target": "module.load"}, "target should be 'module:callable', got 'module.load'"),
    (ADAPTER, {"aliases": ("a b",)}, "a alias is made of"),
    (ADAPTER, {"ttm_defaults": {"learning_rate": 1}}, "ttm_defaults: unknown key 'learning_rate'"),
    (SOURCE, {"needs": "places"}, "needs should be 'module:callable'"),
    (METHOD, {"name": "ttm"}, "'ttm' is the name of a column that ttmbench has"),
    (METHOD, {"name": "score"}, "'score' is the name of a step whose time results state"),
    (METHOD, {"needs": ([],)}, "'needs.0': must be 'scores'"),
    (METHOD, {"needs": ("labels",)}, "a method of a plugin gets no labels, not even random ones"),
    (METHOD, {"takes_ttm_args": True}, "its needs have 'gradients'"),
    (METHOD, {"needs": ("gradients",)}, "reset is for a method that needs gradients, and such a method has one"),
]


@pytest.mark.parametrize(
    ("good", "changes", "says"), WRONG, ids=[f"{type(g).__name__} {' '.join(c)}" for g, c, _ in WRONG]
)
def test_a_wrong_specification_is_named_with_plugin_file_and_line(good, changes, says):
    build_registry(extra=[("mine", plugin_of(good))])
    with pytest.raises(UsageError) as caught:
        build_registry(extra=[("mine", plugin_of(replace(good, **changes)))])
    message = str(caught.value)
    assert message.startswith("plugin 'mine' in ttmbench_register_") and says in message and "\n" not in message
    assert re.search(r"\(test_manager\.py, line \d+\): " + type(good).__name__, message), message


def test_an_instance_of_another_class_is_nothing_to_register():
    wrong = type("Made", (), {"ttmbench_register_metrics": hookimpl(lambda self: [SCHEDULE])})()
    with pytest.raises(UsageError, match="ScheduleSpec cannot be registered here; expected MetricSpecs of ttmbench"):
        build_registry(extra=[("mine", wrong)])


def test_what_ships_fits():
    registry = build_registry()
    assert not registry.broken and registry.plugins[0] == "ttmbench"
    for kind in ("adapters", "sources", "metrics", "schedules"):  # methods may have labels and names of columns
        for spec in getattr(registry, kind).values():
            assert problem_of(spec, f"ttmbench_register_{kind}") is None, spec
    for name, spec in registry.methods.items():
        assert arguments(spec) is not None and all(one.allowed for one in arguments(spec)), name


def test_labels_are_for_the_built_in_upper_bound_and_controls():
    methods = {name: spec for name, spec in build_registry().methods.items()}
    assert {name for name, spec in methods.items() if "labels" in spec.needs} == {"oracle", "finetuned"}
    assert {name for name, spec in methods.items() if "random_labels" in spec.needs} == {"placebo", "shuffle"}
    tracks = {name: methods[name].track for name in ("oracle", "finetuned", "placebo", "ttm")}
    assert tracks == {"oracle": "oracle", "finetuned": "supervised", "placebo": None, "ttm": "test_time"}


@pytest.mark.parametrize("values", [lambda s: np.full(len(s), 5.43), lambda s: np.full(len(s), -0.1)])
def test_a_metric_outside_its_range_is_an_error_and_never_a_percentage(values, folder_task, tmp_path, capsys):
    task = folder_task(metrics=["clear"]) / "mine.yaml"
    mine = plugin_of(MetricSpec("clear", values))
    with pytest.raises(TtmbenchError) as caught:
        simple_evaluate(Even(), str(task), plugins=[("mine", mine)], output_path=str(tmp_path / "r.json"))
    assert re.fullmatch(
        r"metric 'clear' of plugin 'mine' gave (5\.43|-0\.1) for 0; .* from 0 to 1 .* \(test_manager\.py, line \d+\)",
        str(caught.value),
    )
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "failed" and "543" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"chance": lambda images, captions: 25}, "chance of metric 'clear' of plugin 'mine' gave 25"),
        *(
            ({part: lambda *_: 1 / 0}, f"{part} of metric 'clear' of plugin 'mine' failed: ZeroDivisionError")
            for part in ("chance", "defined", "ties")
        ),
        ({"compute": lambda scores: torch.ones(len(scores), requires_grad=True)}, "failed: RuntimeError"),
        ({"compute": lambda scores: np.zeros(1)}, "gave an array of shape [1]; 6 fractions"),
        ({"compute": lambda scores: np.full(len(scores), np.nan)}, "gave nan for 0; 6 fractions"),
    ],
)
def test_what_fails_in_a_metric_is_named_with_file_and_line(more, says, folder_task):
    task = folder_task(metrics=["clear"]) / "mine.yaml"
    mine = plugin_of(replace(MetricSpec("clear", ones), **more))
    with pytest.raises(TtmbenchError, match=re.escape(says)) as caught:
        simple_evaluate(Even(), str(task), plugins=[("mine", mine)])
    assert re.search(r"\(test_manager\.py, line \d+\)$", str(caught.value)), caught.value


class Even:
    """Scores by the number of letters."""

    def fingerprint(self):
        return {"model": "even"}

    def score_pairs(self, images, captions):
        return np.array([len(caption) % 7 + image.width % 3 for image, caption in zip(images, captions, strict=True)])


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Writes a package and makes it look installed."""

    def write(name: str, text: str, **files: str) -> None:
        package = tmp_path / "site" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "plugin.py").write_text(text)
        for file, content in files.items():
            target = package / file.replace("__", "/").replace("_dot_", ".")
            target.parent.mkdir(exist_ok=True)
            target.write_text(content)
        points.append(EntryPoint(name, f"{name}.plugin", "ttmbench"))

    points: list[EntryPoint] = []
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("ttmbench.plugins.registry.entry_points", lambda group: points)
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in {point.name for point in points}]:
        del sys.modules[name]


HEAD = "from ttmbench import AdapterSpec, MethodSpec, MetricSpec, hookimpl\nimport pathlib\n"
ADAPTERS = '@hookimpl\ndef ttmbench_register_adapters():\n    return [AdapterSpec("{0}", "{0}.model:load")]\n'
BROKEN = {
    "import": ("import acme_nowhere\n", "could not be imported: ModuleNotFoundError", "broken_a/plugin.py, line 3"),
    "syntax": ("def f(:\n", "could not be imported: SyntaxError", "broken_a/plugin.py, line 3"),
    "hook": (
        "@hookimpl\ndef ttmbench_register_metrics():\n    return 1 / 0\n",
        "failed in ttmbench_register_metrics: ZeroDivisionError",
        "broken_a/plugin.py, line 5",
    ),
    "labels": (
        "@hookimpl\ndef ttmbench_register_methods():\n"
        '    return [MethodSpec("m", "a:b", needs=("labels",)), MethodSpec("sound_m", "a:b")]\n',
        "MethodSpec 'm': a method of a plugin gets no labels, not even random ones",
        "broken_a/plugin.py, line 3",
    ),
    "misspelt": ("@hookimpl\ndef ttmbench_register_metric():\n    return []\n", "does not fit: ", ""),
    "taken": (
        '@hookimpl\ndef ttmbench_register_adapters():\n    return [AdapterSpec("tiny-clip", "a:b")]\n',
        "'ttmbench' both register 'tiny-clip'",
        "",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_takes_nothing_else_down(case, installed, capsys):
    text, says, place = BROKEN[case]
    installed("broken_a", HEAD + text)
    installed("sound_b", HEAD + ADAPTERS.format("sound_b"))
    for command in (["ls", "tasks"], ["ls", "models"], ["show", "tiny-clip"]):
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert err.startswith("ttmbench: plugin 'broken_a' ") and err.count("\n") == 1, err
        assert says in err and place in err and "everything else works" in err
        assert "sound_b" in out or command[1] != "models"
    assert case != "labels" or "sound_m" in build_registry(quiet=True).methods
    if case == "import":
        assert main(["doctor", "--models", "tiny-clip"]) == 0
        assert says in capsys.readouterr().out
        assert main(["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "2", "--bootstrap_iters", "0"]) == 0
        assert says in capsys.readouterr().err
    for option in (["--model", "acme", "--tasks", "shapes_color"], ["--model", "tiny-clip", "--tasks", "acme"]):
        assert main(option) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert "unknown" in last and says in last and place in last, "what is not there may be the broken plugin's"
    assert main(["ls", "plugins", "--json"]) == 0
    rows = {row["plugin"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["broken_a"]["status"] == "broken" and rows["sound_b"]["status"] == "loaded"


def test_an_entry_point_is_named_by_its_package_too(monkeypatch):
    package = SimpleNamespace(name="ttmbench-acme")
    point = SimpleNamespace(name="acme", value="x:y", dist=package, load=lambda: plugin_of(METRIC))
    monkeypatch.setattr("ttmbench.plugins.registry.entry_points", lambda group: [point])
    assert build_registry().plugins == ["ttmbench", "ttmbench-acme:acme"]


def test_what_a_plugin_prints_goes_to_stderr(installed, capsys):
    adapters = ADAPTERS.format("loud_a").replace("    return", "    print('asked')\n    return")
    installed("loud_a", 'print("hello at import")\n' + HEAD + adapters)
    assert main(["ls", "plugins", "--json"]) == 0
    out, err = capsys.readouterr()
    assert {row["plugin"]: row["status"] for row in json.loads(out)}["loud_a"] == "loaded"
    assert "hello at import" in err and "asked" in err


def test_two_plugins_that_take_one_name_leave_it_to_nobody(installed, capsys):
    installed("first_a", HEAD + ADAPTERS.format("shared"))
    installed("second_b", HEAD + ADAPTERS.format("shared"))
    assert main(["--model", "shared", "--tasks", "shapes_color"]) == 2
    err = capsys.readouterr().err
    assert "unknown model 'shared'" in err and err.count("'second_b' both register 'shared'") == 2
    assert main(["ls", "models"]) == 0 and "shared" not in capsys.readouterr().out


def test_a_wrong_task_of_a_plugin_is_left_out(installed, capsys):
    dirs = "@hookimpl\ndef ttmbench_register_task_dirs():\n    return [pathlib.Path(__file__).parent / 'tasks']\n"
    installed("broken_a", HEAD + dirs, tasks__bad_dot_yaml="task: bad\nversion: x\n")
    for command in (["ls", "tasks"], ["doctor"], ["ls", "tags"]):
        assert main(command) == 0
        out, err = capsys.readouterr()
        shown = {"tags": "builtin", "doctor": "tiny-clip"}.get(command[-1], "shapes_")
        assert err.startswith("ttmbench: task 'bad' of plugin 'broken_a' is skipped: ") and shown in out
    assert main(["--model", "tiny-clip", "--tasks", "bad"]) == 2


@pytest.mark.parametrize(
    ("model", "code", "says"),
    [
        ("def load():\n    return {}['gone']\n", 1, "failed: KeyError: 'gone'"),
        ("import json\nimport acme_nowhere\n", 2, "cannot be imported: No module named 'acme_nowhere'"),
    ],
)
def test_a_broken_model_of_a_plugin_is_named_with_its_line(model, code, says, installed, capsys):
    installed("broken_a", HEAD + ADAPTERS.format("broken_a"), model_dot_py=model)
    assert main(["--model", "broken_a", "--tasks", "shapes_color"]) == code
    assert f"{says} (broken_a/model.py, line 2)\n" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["numpy.gone", "a number"])
def test_annotations_that_say_nothing_do_not_matter(kind, installed):
    model = (
        f"import numpy\nclass Longest:\n    def score_pairs(self, images, captions):\n"
        f'        return [len(one) for one in captions]\ndef load(scale: "{kind}" = 1):\n    return Longest()\n'
    )
    installed("sound_b", HEAD + ADAPTERS.format("sound_b"), model_dot_py=model)
    command = ["--model", "sound_b", "--tasks", "shapes_spatial", "--limit", "2", "--bootstrap_iters", "0"]
    assert main(command) == 0 and main([*command, "--dry_run"]) == 0
