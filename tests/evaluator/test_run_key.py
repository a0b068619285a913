"""What makes two commands the same: every setting, alone, changes the key or is one of those that change no number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ttmbench._util import machine
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import find_task
from ttmbench.evaluator import output as module
from ttmbench.evaluator.evaluate import resolve
from ttmbench.evaluator.output import RunKey
from ttmbench.plugins.registry import build_registry

BASE = {"model": "tiny-clip", "tasks": ["shapes_color"], "ttm": True}
# Of every setting another value; `samples` and `also` name files, whose content counts.
OTHERS = {
    "model": "hf",
    "model_args": {"pretrained": "x"},
    "model_name": "mine",
    "task_args": {"seed": 4},
    "include_path": ["x"],
    "ttm": False,
    "ttm_args": {"epochs": 2},
    "ttm_preset": "paper",
    "holdout": 0.5,
    "methods": ["dn"],
    "method_args": {"dn.strength": 0.5},
    "audit_labels": True,
    "save_adapted": "x",
    "rerank": {"model": "hf"},
    "seeds": [1],
    "limit": 3,
    "batch_size": 3,
    "device": "cuda",
    "dtype": "bf16",
    "compile": True,
    "deterministic": True,
    "output_path": "x",
    "log_samples": True,
    "save_scores": True,
    "use_cache": "off",
    "offline": True,
    "data_dir": "x",
    "overwrite": "always",
    "on_error": "continue",
    "assertions": ["shapes_color.group_match>=0.8"],
    "baseline": "x.json",
    "track": ["wandb"],
    "track_args": {"project": "x"},
    "bootstrap_iters": 7,
    "interval": "bca",
    "seed": 2,
    "trust_remote_code": True,
}


REGISTRY = build_registry()


@pytest.fixture(scope="module")
def tasks():
    return {name: find_task(REGISTRY, name) for name in ("shapes_color", "shapes_place")}


@pytest.fixture
def run(tasks):
    """The key of a run of one task, as an object."""

    def make(settings=None, also=None, names=("shapes_color",), **changes) -> RunKey:
        config = RunConfig(**{**BASE, "tasks": list(names), **changes})
        settings = settings or {name: TTMConfig() for name in names}
        return RunKey.of(REGISTRY, config, {name: tasks[name] for name in names}, settings, also or {})

    return make


@pytest.fixture
def key(run):
    """The digest of the key of a run of one task, but for what is given."""
    return lambda **changes: run(**changes).sha256


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
    assert RunKey.of(REGISTRY, RunConfig(**BASE), changed, {"shapes_color": TTMConfig()}, {}).sha256 != key()


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
    keys = {RunKey.of(REGISTRY, config, tasks, {}, also).sha256 for config in paths}
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
            patched.setattr(module.machine, "packages", lambda name=name: {**packages, name: "0"})
            assert key() != before, name


def test_where_bits_count_so_does_the_batch_size(key, monkeypatch):
    assert key(deterministic=True, batch_size=3) != key(deterministic=True, batch_size=4)
    assert key(batch_size=3) == key(batch_size=4)
    monkeypatch.setattr("ttmbench.evaluator.determinism.conditions", lambda batch_size: {"cpu": "another"})
    assert key(deterministic=True) == key(deterministic=True, batch_size=3)


def stored(key: RunKey, **changes):
    """What a results document of a run states of its key."""
    return {
        "run_key": key.sha256,
        "packages": key.content["packages"],
        "code": key.content.get("code"),
        "config": dict(key.content["config"]),
        "task_status": {"shapes_color": "done"},
        **changes,
    }


def test_packages_that_changed_are_named_with_their_versions(run, monkeypatch):
    packages = machine.packages()
    with monkeypatch.context() as patched:
        patched.setattr(module.machine, "packages", lambda: {**packages, "numpy": "1.0"})
        older = run()
    now = f"numpy 1.0 became {packages['numpy']}"
    assert run().changes_since(stored(older)) == now
    monkeypatch.setattr(module, "digests_of_modules", lambda modules: {"ttmbench": "b"})
    assert run().changes_since(stored(older)) == f"the source of package ttmbench changed and {now}"
