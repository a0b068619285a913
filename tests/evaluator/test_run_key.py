"""What makes two commands the same: settings, files, packages and the source code of what a run uses."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.plans import cells_of

import ttmbench
from ttmbench._util import machine
from ttmbench._util.file_io import digests_of_modules, modules_of
from ttmbench.cli import main
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import find_task
from ttmbench.errors import UsageError
from ttmbench.evaluator.evaluate import Chosen, resolve
from ttmbench.evaluator.output import ConfigKey
from ttmbench.plugins.registry import build_registry
from ttmbench.sweep.execute import write_run

BASE = {"model": "tiny-clip", "tasks": ["shapes_color"], "ttm": True}
# Of every setting another value; `samples` and `also` name files, whose content counts.
OTHERS = {
    **{"model": "hf", "model_args": {"pretrained": "x"}, "model_name": "mine", "task_args": {"seed": 4}},
    **{"metrics": ["text_ece"], "include_path": ["x"], "ttm": False, "ttm_args": {"epochs": 2}, "ttm_preset": "paper"},
    **{"holdout": 0.5, "methods": ["dn"], "method_args": {"dn.strength": 0.5}, "audit_labels": True},
    **{"save_adapted": "x", "rerank": {"model": "hf"}, "seeds": [1], "limit": 3, "batch_size": 3, "device": "cuda"},
    **{"dtype": "bf16", "compile": True, "deterministic": True, "output_path": "x", "log_samples": True},
    **{"save_scores": True, "use_cache": "off", "offline": True, "data_dir": "x", "overwrite": "always"},
    **{"on_error": "continue", "assertions": ["shapes_color.group_match>=0.8"], "baseline": "x.json"},
    **{"track": ["wandb"], "track_args": {"project": "x"}, "bootstrap_iters": 7, "interval": "bca", "seed": 2},
    "trust_remote_code": True,
}
REGISTRY = build_registry()


@pytest.fixture(scope="module")
def tasks():
    return {name: find_task(REGISTRY, name) for name in ("shapes_color", "shapes_place")}


@pytest.fixture
def key_of(tasks):
    """The key of a key_of of one task, as an object."""

    def make(settings=None, also=None, names=("shapes_color",), **changes) -> ConfigKey:
        config = RunConfig(**{**BASE, "tasks": list(names), **changes})
        settings = settings or {name: TTMConfig() for name in names}
        return Chosen(REGISTRY, {name: tasks[name] for name in names}, settings, also or {}).key(config)

    return make


@pytest.fixture
def key(key_of):
    """The digest of the key of a key_of of one task, but for what is given."""
    return lambda **changes: key_of(**changes).sha256


def test_every_setting_alone_changes_the_key_or_no_number(key):
    assert set(OTHERS) == set(RunConfig.model_fields) - {"tasks", "samples", "also"}, "a new setting belongs here"
    assert key() == key() and len(key()) == 64
    changed = {name for name, value in OTHERS.items() if key(**{name: value}) != key()}
    assert set(OTHERS) - changed == {
        *("output_path", "batch_size", "on_error", "overwrite", "assertions", "offline", "data_dir", "include_path"),
        *("use_cache", "baseline", "track", "track_args", "model_name", "device"),
    }
    assert key(methods=["overfit"]) != key(methods=["oracle"])


def test_tasks_count_by_their_content_and_not_by_their_order(key, tasks):
    both, turned = ("shapes_color", "shapes_place"), ("shapes_place", "shapes_color")
    assert key(names=both) == key(names=turned) != key()
    other = tasks["shapes_color"].spec.model_copy(update={"version": 99})
    changed = {"shapes_color": type(tasks["shapes_color"])(**{**vars(tasks["shapes_color"]), "spec": other})}
    assert Chosen(REGISTRY, changed, {"shapes_color": TTMConfig()}, {}).key(RunConfig(**BASE)).sha256 != key()


def test_settings_of_the_test_time_stage_count_where_there_is_one(key):
    other = {"shapes_color": TTMConfig(epochs=3)}
    assert key(settings=other) != key()
    chosen = resolve(RunConfig(**BASE))
    for ttm in (True, False):
        config = RunConfig(**{**BASE, "ttm": ttm})
        assert (replace(chosen, settings=other).key(config) != chosen.key(config)) is ttm
    assert key(seeds=[0]) == key(seed=0, seeds=[0]) == key(), "one seed, 0, is the default"
    assert key(seed=0, seeds=[0, 1]) != key()


def test_tasks_that_adapted_models_are_measured_on_count_by_their_content(key, tasks):
    also = {"shapes_place": tasks["shapes_place"]}
    assert key(also=also) != key() == key(also={})
    paths = [RunConfig(**BASE, also=[name]) for name in ("a.yaml", "b.yaml")]
    keys = {Chosen(REGISTRY, tasks, {}, also).key(config).sha256 for config in paths}
    assert len(keys) == 1, "a path is not a content"


def test_the_content_of_a_samples_file_counts(key, tmp_path):
    one, other, same = (tmp_path / name for name in ("one.json", "other.json", "same.json"))
    for path, text in ((one, "[1]"), (other, "[2]"), (same, "[1]")):
        path.write_text(text, encoding="utf-8")
    found = [key(samples=str(path)) for path in (one, other, same)]
    assert found[0] == found[2] and len({*found, key()}) == 3


def test_packages_count(key, monkeypatch):
    before, packages = key(), machine.packages()
    for name in packages:
        with monkeypatch.context() as patched:
            patched.setattr(machine, "packages", lambda name=name: {**packages, name: "0"})
            assert key() != before, name


def test_where_bits_count_so_does_the_batch_size(key, monkeypatch):
    assert key(deterministic=True, batch_size=3) != key(deterministic=True, batch_size=4)
    assert key(batch_size=3) == key(batch_size=4)
    monkeypatch.setattr("ttmbench._util.machine.conditions", lambda batch_size: {"cpu": "another"})
    assert key(deterministic=True) == key(deterministic=True, batch_size=3)


def test_what_differs_from_an_earlier_run_is_named(tmp_path, monkeypatch):
    def evaluate(tasks="shapes_color", **more):
        settings = {"limit": 4, "bootstrap_iters": 0, "device": "cpu", "output_path": str(tmp_path / "x.json"), **more}
        return ttmbench.simple_evaluate("tiny-clip", tasks, **settings)

    evaluate()
    with pytest.raises(UsageError, match=r"(?=.*--limit)(?=.*--seed)(?=.*--tasks)(?!.*--seeds)"):
        evaluate("shapes_place", limit=3, seed=1)
    packages = {**machine.packages(), "numpy": "99"}
    monkeypatch.setattr(machine, "packages", lambda: packages)
    with pytest.raises(UsageError, match=r"numpy .* became 99"):
        evaluate()


PACKAGE = "my_adapter"
MODEL = """
from ttmbench.model_adapters import hf
from ttmbench.model_adapters.hf import TransformersModel

class Louder(TransformersModel):
    def loss_of(self, images, captions):
        return super().loss_of(images, captions) * 1

def louder(device="auto"):
    model = hf.load(pretrained="tiny_clip", device=device)
    model.__class__ = Louder
    return model
"""
PARTS = """
import io
from functools import partial
from pathlib import Path
import numpy as np
from PIL import Image
from ttmbench import Group, ImageRef

def first(scores):
    return scores[:, 0].argmax(axis=1) == 0

def gentle(start, end, iterations):
    return end + (start - end) * np.linspace(1, 0, iterations)

TURN = 0

def read(request):
    for index in range(4):
        files = [Path(request.options["folder"]) / f"{index}{side}.png" for side in "ab"]
        yield Group(str(index), tuple(
            ImageRef(file.name, partial(opened, file), read=file.read_bytes) for file in files
        ), (f"one {index}", f"two {index}"))

def opened(file):
    return Image.open(io.BytesIO(file.read_bytes())).rotate(TURN)
"""
SCORER = """
import numpy as np

SIGN = 1

def score(captions):
    return np.array([SIGN * len(one) for one in captions], dtype=np.float32)
"""
LONG = """
from my_adapter.scorer import score

class Long:
    def fingerprint(self):
        return {"kind": "long"}

    def score_pairs(self, images, captions):
        return score(captions)
"""
METHODS = """
def scaled(task, *, factor: float = 2.0):
    return task.scores * factor
"""
PLUGIN = """
from ttmbench import AdapterSpec, MethodSpec, MetricSpec, ScheduleSpec, SourceSpec, hookimpl
from my_adapter import parts

@hookimpl
def ttmbench_register_adapters():
    return [AdapterSpec("louder", "my_adapter.model:louder"), AdapterSpec("long", "my_adapter.long:Long")]

@hookimpl
def ttmbench_register_metrics():
    return [MetricSpec("first_image", parts.first)]

@hookimpl
def ttmbench_register_sources():
    return [SourceSpec("drawn", "my_adapter.parts:read")]

@hookimpl
def ttmbench_register_schedules():
    return [ScheduleSpec("gentle", parts.gentle)]

@hookimpl
def ttmbench_register_methods():
    return [MethodSpec("scaled", "my_adapter.methods:scaled")]
"""
RUN = ["--limit", "6", "--bootstrap_iters", "0", "--device", "cpu"]
TTM = ["--ttm", "--ttm_args", "iterations=1,epochs=1,lr=1e-4"]
GENTLE = ["--ttm", "--ttm_args", "iterations=2,epochs=1,schedule=gentle"]


class Installed:
    """A plugin on the path, as pip leaves it; edited, it is imported anew, as in the next process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / PACKAGE
        self.folder.mkdir(parents=True)
        files = {"__init__.py": "", "model.py": MODEL, "parts.py": PARTS, "plugin.py": PLUGIN, "scorer.py": SCORER}
        files |= {"long.py": LONG, "methods.py": METHODS}
        for name, content in files.items():
            (self.folder / name).write_text(content)
        about = folder / f"{PACKAGE}-0.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0.1\n")
        (about / "entry_points.txt").write_text(f"[ttmbench]\n{PACKAGE} = {PACKAGE}.plugin\n")

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        self.forget()

    def forget(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        importlib.invalidate_caches()


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("ttmbench.plugins.registry.entry_points", entry_points)  # not those that all tests share
    made = Installed(tmp_path / "site")
    made.forget()
    yield made
    made.forget()


@pytest.fixture
def task(tmp_path):
    """A task that takes everything from the plugin."""
    rng = np.random.default_rng(0)
    for index in range(4):
        for side in "ab":
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"{index}{side}.png")
    path = tmp_path / "drawn_pairs.yaml"
    path.write_text(
        f"task: drawn_pairs\nversion: 1\nsource: {{kind: drawn, folder: '{tmp_path}'}}\n"
        "group: {shape: [2, 2]}\nmetrics: [group_match, first_image]\n"
    )
    return path


def run(folder: Path, *arguments: str) -> dict:
    assert main(["run", *arguments, *RUN, "--output_path", str(folder)]) == 0
    return json.loads(max(folder.rglob("results_*.json")).read_text(encoding="utf-8"))


def test_an_edited_adapter_runs_again_and_says_so(tmp_path, plugin, capsys):
    command = ["--model", "louder", "--tasks", "shapes_color", *TTM]
    first = run(tmp_path / "out", *command)
    assert "running again" not in capsys.readouterr().err
    plugin.forget()
    run(tmp_path / "out", *command)
    assert "every task is done" in capsys.readouterr().err
    plugin.edit("model.py", "* 1", "* 100")
    again = run(tmp_path / "out", *command)
    said = capsys.readouterr().err
    assert "the source of package my_adapter changed since results_" in said and "running again" in said
    assert "every task is done" not in said
    losses = [one["methods"]["shapes_color"]["ttm"]["iterations"][0]["loss"][0] for one in (first, again)]
    assert losses[1] == pytest.approx(100 * losses[0], rel=1e-3)
    assert set(first["code"]) == {"my_adapter", "ttmbench"}
    assert first["code"]["ttmbench"] == again["code"]["ttmbench"] != again["code"]["my_adapter"]
    assert first["code"]["my_adapter"] != again["code"]["my_adapter"]


@pytest.mark.parametrize(
    ("file", "old", "new", "model", "more"),
    [
        ("parts.py", "argmax", "argmin", "tiny-clip", []),
        ("parts.py", "TURN = 0", "TURN = 90", "tiny-clip", []),
        ("parts.py", "(1, 0, iterations)", "(1, 0.5, iterations)", "tiny-clip", GENTLE),
        ("methods.py", "factor: float = 2.0", "factor: float = 3.0", "tiny-clip", ["--methods", "scaled"]),
    ],
    ids=["metric", "source", "schedule", "method"],
)
def test_other_parts_of_a_plugin_count_where_a_run_uses_them(
    tmp_path, plugin, task, capsys, file, old, new, model, more
):
    tasks = "shapes_color" if more else str(task)
    command = ["--model", model, "--tasks", tasks, *more]
    run(tmp_path / "out", *command)
    plugin.forget()
    run(tmp_path / "out", *command)
    assert "every task is done" in capsys.readouterr().err
    plugin.edit(file, old, new)
    run(tmp_path / "out", *command)
    assert "the source of package my_adapter changed since results_" in capsys.readouterr().err


def test_every_python_file_of_ttmbench_is_in_its_digest(tmp_path):
    """As it lies in a checkout, where models and tasks are links, and as it lies in a wheel, which is one folder."""
    shutil.copytree(Path(ttmbench.__file__).parent, tmp_path / "ttmbench")
    code = "from ttmbench._util.file_io import digests_of_modules as of; print(of(['ttmbench.metrics'])['ttmbench'])"

    def digest():
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    whole = digest()
    assert whole == digests_of_modules(["ttmbench.metrics"])["ttmbench"]
    for name in ("metrics.py", "model_adapters/hf.py", "tasks/__init__.py"):
        edited = tmp_path / "ttmbench" / name
        edited.write_bytes(edited.read_bytes() + b"\n")
        assert digest() != whole, name
        whole = digest()


def test_code_that_cannot_be_read_is_never_resumed(tmp_path, capsys):
    class Typed:
        def fingerprint(self):
            return {"kind": "typed"}

        def score_pairs(self, images, captions):
            return np.arange(len(captions), dtype=np.float32)

    Typed.__module__ = "nowhere_to_be_found"
    assert digests_of_modules(modules_of(Typed())) == {"nowhere_to_be_found": None}
    for _ in range(2):
        done = ttmbench.simple_evaluate(
            Typed(), "shapes_color", limit=4, bootstrap_iters=0, output_path=str(tmp_path), model_name="typed"
        )
    said = capsys.readouterr().err
    assert "the source of package nowhere_to_be_found cannot be read, so it may have changed since results_" in said
    assert "every task is done" not in said and done["code"]["nowhere_to_be_found"] is None
    assert len(list(tmp_path.rglob("results_*.json"))) == 2


def test_a_cell_runs_again_where_its_plugin_was_edited(tmp_path, plugin):
    def cell():
        return cells_of(tmp_path, models=["louder"], options={"limit": 6, "bootstrap_iters": 0})[0]

    assert main(["run", "--config", str(write_run(cell()))]) == 0
    plugin.forget()
    assert cell().is_done()
    plugin.edit("model.py", "* 1", "* 100")
    assert not cell().is_done()


@pytest.mark.parametrize(
    ("model", "file", "old", "new"),
    [("tiny-clip", "parts.py", "TURN = 0", "TURN = 90"), ("long", "scorer.py", "SIGN = 1", "SIGN = -1")],
    ids=["source", "adapter of several files"],
)
def test_an_edited_adapter_or_source_gets_no_cached_scores(tmp_path, plugin, task, capsys, model, file, old, new):
    """Both are asked for their bytes only: what a plugin makes of them is not to be seen there."""
    tasks = "shapes_color" if model == "long" else str(task)
    hashes = []
    for out, is_edited in (("1", False), ("2", False), ("3", True)):
        plugin.edit(file, old, new) if is_edited else plugin.forget()
        words = ["--model", model, "--tasks", tasks, "--use_cache", str(tmp_path / "kept")]
        hashes.append(run(tmp_path / out, *words)["task_hashes"])
        assert ("raw scores come from the cache" in capsys.readouterr().err) == (out == "2")
    assert (hashes[2] != hashes[0]) == (model == "tiny-clip") and hashes[0] == hashes[1]


def test_what_a_package_is(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("lone.py", "team/one/__init__.py", "team/two/__init__.py", "whole/__init__.py", "whole/deep/code.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("whole/prompts.yaml", "whole/weights.bin", "whole/__pycache__/code.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    importlib.invalidate_caches()

    def digests():
        return digests_of_modules(["lone", "team.one.x", "whole.deep.code", "json", "numpy.linalg", "gone.too"])

    before = digests()
    assert list(before) == ["gone", "lone", "team.one", "whole"] and before["gone"] is None
    changed = {
        "lone.py": "lone",
        "team/one/__init__.py": "team.one",
        "whole/deep/code.py": "whole",
        "whole/prompts.yaml": "whole",
        "team/two/__init__.py": None,
        "whole/weights.bin": None,
        "whole/__pycache__/code.pyc": None,
    }
    for file, package in changed.items():
        (tmp_path / file).write_text("other = 1")
        now = digests()
        assert [name for name in now if now[name] != before[name]] == ([] if package is None else [package]), file
        before = now
