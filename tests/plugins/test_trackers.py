"""Trackers: what libraries hold after a run, and that a tracker which fails never disturbs one."""

from __future__ import annotations

import sys
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

import ttmbench
from ttmbench.cli import main
from ttmbench.config import make_run_config
from ttmbench.errors import UsageError
from ttmbench.plugins import trackers
from ttmbench.plugins.trackers import TrackerPlugin

QUICK = {"limit": 4, "device": "cpu", "bootstrap_iters": 20}
SHORT = {"iterations": 3, "epochs": 1}
LINE = {"seed", "iteration", "loss", "metrics", "candidates"}


def evaluate(tracker, folder, **more):
    settings = {"ttm": SHORT, "seeds": [0, 1], "methods": ["placebo"], **QUICK, **more}
    track_args = {"project": "p", "name": "first", "dir": str(folder / "logs")}
    if tracker == "wandb":
        track_args["mode"] = "offline"
    if tracker == "trackio":
        del track_args["dir"]
    return ttmbench.simple_evaluate("tiny-clip", "shapes_color", track=[tracker], track_args=track_args, **settings)


def expected_finals(document) -> dict[str, float]:
    """Every number under its track, written out from the document once more."""
    found = {}
    for key, value in document["results"]["shapes_color"].items():
        metric, name = key.split(",")
        base = metric.replace("_stderr", "").replace("_seed_std", "")
        track = document["tracks"]["shapes_color"].get(f"{base},{name}", "unranked")
        if value is not None:
            found[f"{track}/shapes_color/{name}/{metric}"] = value
    assert {key.split("/")[0] for key in found} == {"zero_shot", "matching", "test_time", "unranked"}
    assert all(("/ttm/" in key) == key.startswith("test_time/") for key in found)
    return found


def expected_curves(document) -> dict[str, list[tuple[int, float]]]:
    """name -> (iteration, value)."""
    found: dict[str, list[tuple[int, float]]] = {}
    records = document["methods"]["shapes_color"]
    for method, line in [(name, line) for name in records for line in records[name]["iterations"]]:
        values = {key: value for key, value in line.items() if key not in LINE} | line["metrics"]
        if line["loss"]:
            values["loss"] = line["loss"][-1]
        for key, value in values.items():
            if value is not None:
                name = f"{method}/shapes_color/seed_{line['seed']}/{key}"
                found.setdefault(name, []).append((line["iteration"], float(value)))
    assert any(name.endswith("/pseudo_label_accuracy") for name in found) and len(found) >= 20
    return found


def test_tensorboard_holds_the_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    document = evaluate("tensorboard", tmp_path).document
    events = EventAccumulator(str(tmp_path / "logs" / "p" / "first"))
    events.Reload()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    expected = expected_curves(document) | {name: [(0, value)] for name, value in expected_finals(document).items()}
    assert scalars.keys() == expected.keys()
    for tag, points in expected.items():
        assert [step for step, _ in scalars[tag]] == [step for step, _ in points], tag
        assert [value for _, value in scalars[tag]] == pytest.approx([value for _, value in points], rel=1e-6), tag
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert '"limit": 4' in texts["config/text_summary"] and '"status": "done"' in texts["run/text_summary"]
    evaluate("tensorboard", tmp_path)
    assert (tmp_path / "logs" / "p" / "first-2").is_dir(), "a name given twice is two runs"


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_library_gets_curves_and_final_numbers(name, tmp_path, monkeypatch):
    """A stand-in takes down what the libraries' own calls would store."""
    logged, summary, asked, ended = list[tuple[dict, int]](), dict[str, Any](), dict[str, Any](), list[int]()

    def log(values, step=None):
        steps = [int(value) for key, value in values.items() if key.endswith("/iteration")]
        logged.append(
            ({key: value for key, value in values.items() if not key.endswith("/iteration")}, step or sum(steps))
        )

    run = SimpleNamespace(
        log=log, summary=summary, define_metric=lambda *_, **__: None, finish=lambda exit_code: ended.append(exit_code)
    )
    library = SimpleNamespace(
        Settings=dict, init=lambda **given: asked.update(given) or run, finish=lambda: ended.append(0)
    )
    monkeypatch.setitem(sys.modules, name, library)
    document = evaluate(name, tmp_path).document
    found: dict[str, list[tuple[int, float]]] = {}
    for values, step in logged:
        for key, value in values.items():
            found.setdefault(key, []).append((step, value))
    finals = expected_finals(document)
    if name == "wandb":
        assert {key: summary[key] for key in finals} == finals and summary["run_key"] == document["run_key"]
    else:
        finals = {key: [(0, value)] for key, value in finals.items()}
        assert {key: found.pop(key) for key in finals} == finals
    assert found == expected_curves(document) and ended == [0]
    assert asked["config"]["limit"] == QUICK["limit"] and (asked["project"], asked["name"]) == ("p", "first")


class Fake:
    """A tracker that takes down what it is told, and fails where it is told to."""

    def __init__(self, fails="", error=None):
        self.calls, self._fails, self._error = [], fails, error

    def open(self, settings, config):
        self._call("open", config)
        while isinstance(message := (yield), tuple):
            self._call("numbers" if message[1] is None else "curve", *message)
        self._call("close", message)

    def _call(self, name, *words):
        self.calls.append((name, *words))
        print("a library that prints")
        if name == self._fails:
            raise self._error

    def named(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def run_with(monkeypatch):
    def run(fake, **more):
        monkeypatch.setitem(trackers.TRACKERS, "fake", (fake.open, ()))
        plugins = [("fake", TrackerPlugin("fake", {}))]
        return ttmbench.simple_evaluate("tiny-clip", "shapes_color", plugins=plugins, **{**QUICK, **more})

    return run


@pytest.mark.parametrize(
    ("moment", "error"),
    [(one, OSError("no network\nhere")) for one in ("open", "curve", "numbers", "close")] + [("curve", SystemExit(3))],
)
def test_a_tracker_that_fails_is_one_line_and_left_alone(moment, error, capsys, run_with):
    fake = Fake(moment, error)
    run = run_with(fake, ttm=SHORT)
    said = capsys.readouterr()
    assert run["status"] == "done" and said.out == ""
    lines = [line for line in said.err.splitlines() if line.startswith("ttmbench:")]
    assert len(lines) == 1 and "tracker fake failed" in lines[0] and "the run continues without it" in lines[0]
    assert "Traceback" not in said.err
    assert [call[0] for call in fake.calls].count(moment) == 1 and fake.calls[-1][0] == moment


def test_a_failed_run_is_closed_with_its_document(monkeypatch, run_with):
    for error, status in ((KeyboardInterrupt(), "interrupted"), (UsageError("no"), "failed")):

        def no_adapter(*_, error=error):
            raise error

        monkeypatch.setattr("ttmbench.evaluator.evaluate.make_adapter", no_adapter)
        fake = Fake()
        with pytest.raises(type(error)):
            run_with(fake)
        assert [call[0] for call in fake.calls] == ["open", "close"]
        ((document,),) = fake.named("close")
        assert document["status"] == status and document["errors"][0]["type"] == type(error).__name__


def test_a_run_that_was_finished_is_sent_later(tmp_path, run_with):
    settings = {"ttm": SHORT, "seeds": [0, 1], "output_path": str(tmp_path / "x.json")}
    first, second = Fake(), Fake()
    document = run_with(first, **settings).document
    assert run_with(second, **settings)["results"] == document["results"]
    numbers = [dict(pair for values, _ in fake.named("numbers") for pair in values.items()) for fake in (first, second)]
    assert numbers[0] == numbers[1] and second.calls[-1][0] == "close"
    curves = [(next(iter(values)).rpartition("/")[0], iteration) for values, iteration in first.named("curve")]
    assert curves == [(f"ttm/shapes_color/seed_{seed}", iteration) for seed in (0, 1) for iteration in (1, 2, 3)]


def test_settings_go_to_the_trackers_that_have_them(monkeypatch):
    made = {}

    def opens(name):
        def opened(settings, config):
            made[name] = dict(settings)
            yield

        return opened

    for name, (_, accepted) in trackers.TRACKERS.items():
        monkeypatch.setitem(trackers.TRACKERS, name, (opens(name), accepted))
    monkeypatch.setattr(trackers, "import_module", lambda name: None)
    base = {"model": "tiny-clip", "tasks": ["t"], "track": ["wandb", "tensorboard", "trackio", "wandb"]}
    args = {"wandb.project": "q", "project": 7, "dir": "d", "wandb.mode": "offline", "group": "g", "tags": "one"}
    plugins = trackers.make_trackers(make_run_config({**base, "track_args": args}))
    assert [name for name, _ in plugins] == ["tracker wandb", "tracker tensorboard", "tracker trackio"]
    for _, plugin in plugins:
        plugin.ttmbench_run_started({})
    name = made["wandb"].pop("name")
    assert name.startswith("tiny-clip-2") and made["tensorboard"].pop("name") == made["trackio"].pop("name") == name
    assert made == {
        "wandb": {"project": "q", "dir": "d", "mode": "offline", "group": "g", "tags": ["one"]},
        "tensorboard": {"project": "7", "dir": "d"},
        "trackio": {"project": "7", "group": "g"},
    }
    for wrong in ("entty", "trackio.dir", "mlflow.dir", "tensorboard.group"):
        with pytest.raises(UsageError, match=f"--track_args {wrong}: no tracker of this run takes it"):
            trackers.make_trackers(make_run_config({**base, "track_args": {wrong: 1}}))


def no_model(*_):
    raise AssertionError("a model was loaded")


@pytest.mark.parametrize("tracker", list(trackers.TRACKERS))
def test_a_missing_library_names_its_extra_before_a_model_is_loaded(tracker, monkeypatch, capsys, pytestconfig):
    monkeypatch.setattr("ttmbench.evaluator.evaluate.make_adapter", no_model)
    for name in [name for name in sys.modules if name.split(".")[0] == tracker]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tracker, None)
    words = ["--model", "tiny-clip", "--tasks", "shapes_color", "--track", tracker]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and f"pip install 'ttmbench[{tracker}]'" in said
    assert main([*words, "--dry_run"]) == 2
    project = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(need.startswith(tracker) for need in project["optional-dependencies"][tracker])
