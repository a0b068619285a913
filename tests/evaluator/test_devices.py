"""A run on several devices: here on the CPU twice, each in a process of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from support.plans import forked_children

import ttmbench
from ttmbench.cli import main
from ttmbench.data.memory import Task
from ttmbench.errors import UsageError
from ttmbench.evaluator import devices
from ttmbench.methods.runner import SeedCheckpoint
from ttmbench.model_adapters.visualgpt import CaptionModel
from ttmbench.plugins.registry import Registry

BASE = {"bootstrap_iters": 0, "deterministic": True}
SEEDS, METHODS = [0, 1, 2], ["overfit", "placebo", "dn", "zero", "tent"]
DOT = Image.new("RGB", (8, 8))


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The same command on one device and on two: results, and seeds that were trained in this process."""
    found = {}
    for device in ("cpu", "cpu,cpu"):
        folder = tmp_path_factory.mktemp(device.replace(",", "_"))
        trained, told, keep = [], [], SeedCheckpoint.keep
        with pytest.MonkeyPatch.context() as patched, forked_children():

            def kept(self, run, state=None, keep=keep, trained=trained):
                trained.extend([self] if run.is_finished else [])
                return keep(self, run, state)

            def notify(self, hook, told=told, **values):
                if hook == "ttmbench_iteration_finished":
                    told.append((values["record"].seed, values["record"].iteration))

            patched.setattr(SeedCheckpoint, "keep", kept)
            patched.setattr(Registry, "notify", notify)
            results = ttmbench.simple_evaluate(
                *("tiny-clip", "shapes_color"),
                device=device,
                limit=4,
                ttm={"iterations": 2, "epochs": 1},
                methods=METHODS,
                method_args={"zero.views": 4, "tent.images": 4},
                seeds=SEEDS,
                output_path=str(folder / "r.json"),
                save_adapted=str(folder / "adapted"),
                log_samples=True,
                save_scores=True,
                **BASE,
            )
        found[device] = results, len(trained), told
    return found


def test_seeds_of_two_processes_have_the_bits_of_one(apart):
    (one, trained, told), (two, trained_here, told_here) = apart["cpu"], apart["cpu,cpu"]
    assert one.results == two.results and {*two.scores["shapes_color"]} == {"none", "ttm", *METHODS}
    for name, arrays in one.scores["shapes_color"].items():
        for mine, other in zip(arrays, two.scores["shapes_color"][name], strict=True):
            assert np.array_equal(mine.groups, other.groups), name
    first, second = (results.document["methods"]["shapes_color"] for results in (one, two))
    for record in (*first.values(), *second.values()):
        assert all(cost["seconds"] > 0 for cost in record["cost"])
        for line in (*record["cost"], *record.get("iterations", ())):
            line |= {"seconds": 0, "view_seconds": 0}
    assert first == second and second["ttm"]["seeds"] == SEEDS and len(second["dn"]["seeds"]) == 1
    assert two.document["status"] == "done" and two.document["config"]["device"] == "cpu,cpu"
    assert two.document["model_info"]["fingerprint"] == one.document["model_info"]["fingerprint"]
    assert trained > trained_here == 0  # every seed was trained elsewhere, and not again here
    assert sorted(told_here) == sorted(told)
    assert {*told} >= {(seed, iteration) for seed in SEEDS for iteration in (1, 2)}


def test_adapted_models_and_files_are_the_same(apart):
    one, two = (apart[device][0].path.parent for device in ("cpu", "cpu,cpu"))
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(two)) for path in two.rglob("*") if path.is_file())
    for name in (one for one in names if one.endswith(".safetensors") or "samples" in one):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_a_process_that_dies_costs_no_number(tiny_vlm, capsys, monkeypatch):
    """Without a cache of its own; 160 pairs are two blocks, of which each process has one."""
    folder, pairs = tiny_vlm("smolvlm"), []
    how = {"model_args": {"pretrained": str(folder)}, "limit": 40, "use_cache": "off", **BASE}
    whole = CaptionModel.score_prepared

    def score_prepared(self, images, captions):
        pairs.append(len(captions))
        return whole(self, images, captions)

    monkeypatch.setattr(CaptionModel, "score_prepared", score_prepared)
    one = ttmbench.simple_evaluate("visualgpt", "shapes_color", device="cpu", **how)
    alone = sum(pairs)
    pairs.clear()
    with forked_children():
        two = ttmbench.simple_evaluate("visualgpt", "shapes_color", device="cpu,cpu", **how)
    assert (alone, sum(pairs)) == (160, 0)
    assert np.array_equal(one.scores["shapes_color"]["none"][0].groups, two.scores["shapes_color"]["none"][0].groups)
    begin = devices.start

    def killed(function, words, log, environment):
        process = begin(function, words, log, environment)
        if json.loads(words[0])[-2] == 1:
            process.kill()
        return process

    monkeypatch.setattr(devices, "start", killed)
    capsys.readouterr()
    with forked_children():
        three = ttmbench.simple_evaluate("visualgpt", "shapes_color", device="cpu,cpu", **how)
    assert three.results == one.results and 0 < sum(pairs) < 160
    assert "device cpu did not do its part" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tasks", "how", "line"),
    [
        ("shapes_color", {"ttm": True, "also": "shapes_place"}, "--also measures on one device"),
        ("shapes_color", {"plugins": [("mine", object())]}, "a plugin that is an object of this program"),
        (Task.from_groups([(DOT, DOT)], [("a", "b")], name="mine"), {}, "a task that is an object of this program"),
    ],
)
def test_what_cannot_be_divided_is_one_line(tasks, how, line):
    with pytest.raises(UsageError, match=line):
        ttmbench.simple_evaluate("tiny-clip", tasks, device="cpu,cpu", limit=1, **how)


def test_other_commands_take_one_device(tmp_path, capsys):
    words = ["finetune", "--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "2", "--device", "cpu,cpu"]
    assert main([*words, "--output_path", str(tmp_path / "x")]) == 2
    assert "names several devices, and only `run` divides its work" in capsys.readouterr().err
