"""The cache of scores: what its key depends on, damaged files, stopped runs and their blocks, and full disks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file
from support import processes
from support.documents import schema
from support.small_models import Counting, MemoryBlocks, run

from ttmbench._util.file_io import Unreadable, load_sealed, save_sealed
from ttmbench.data.paths import cache_folder
from ttmbench.evaluator import score_task as module
from ttmbench.model_adapters import hf, itm
from ttmbench.scoring.batches import BatchSizer, load, save, spans


class CountingClip:
    """Beside a class of models: counts the rows that it prepares and encodes."""

    rows: dict[str, int]

    @classmethod
    def of(cls, model):
        """The same model, as an object that counts."""
        counted = object.__new__(type(cls.__name__, (cls, type(model)), {"__module__": __name__}))
        counted.__dict__.update(model.__dict__, rows={"images": 0, "captions": 0, "prepared": 0})
        return counted

    def prepare_images(self, images):
        self.rows["prepared"] += len(images)
        return super().prepare_images(images)

    def encode_images(self, prepared):
        self.rows["images"] += len(prepared["pixel_values"])
        return super().encode_images(prepared)

    def encode_captions(self, prepared):
        self.rows["captions"] += len(prepared["input_ids"])
        return super().encode_captions(prepared)


def clip(folder):
    """A CountingClip of a checkpoint."""
    return CountingClip.of(hf.load(pretrained=str(folder), device="cpu"))


class StoppingScorer(Counting):
    """A pair scorer that is interrupted after so many pairs."""

    limit = 10**6

    def score_pairs(self, images, captions):
        if self.calls >= self.limit:
            raise KeyboardInterrupt
        return super().score_pairs(images, captions)


def raw(result, task="shapes_color"):
    return result.scores[task]["none"][0].groups


def entries(store: Path) -> list[Path]:
    return sorted((store / "scores").glob("*/*/scores.safetensors"))


def blocks_of(store: Path) -> list[Path]:
    return sorted((store / "scores").glob("*/*/block-*.safetensors"))


def test_a_second_run_scores_nothing_and_says_so(tmp_path, capsys):
    model, store = Counting(tmp_path / "log"), tmp_path / "store"
    first = run(model, use_cache=str(store))
    calls = model.calls
    assert calls > 0 and "from_store" not in first["datasets"]["shapes_color"] and not capsys.readouterr().err
    second = run(
        model, "shapes_place,shapes_color", use_cache=str(store), batch_size=3, output_path=str(tmp_path / "x")
    )
    assert np.array_equal(raw(first), raw(second)) and first["task_hashes"].items() <= second["task_hashes"].items()
    said = second["datasets"]["shapes_color"]["from_store"]
    assert said["key"][:32] in {path.parents[1].name for path in entries(store)} and said["date"][:2] == "20"
    assert "from_store" not in second["datasets"]["shapes_place"]
    place = model.calls - calls
    for path in entries(store):
        os.utime(path, (1, 1))
    third = run(model, "shapes_color,shapes_place", use_cache=str(store), bootstrap_iters=10, seed=5)
    assert model.calls == calls + place and third.results["shapes_color"].keys() == first.results["shapes_color"].keys()
    assert capsys.readouterr().err.count("raw scores come from the cache") == 2, "once a run"
    jsonschema.Draft202012Validator(schema("results")).validate(third.document)
    assert "prepare" not in third["timing"]["shapes_color"]
    assert all(path.stat().st_mtime > 1 for path in entries(store)), "used just now, so not the first to be removed"


def test_a_dual_encoder_is_neither_prepared_nor_run_again_but_for_ttm(tmp_path, tiny_hf_clip):
    store = str(tmp_path / "store")
    quick = {"ttm_args": {"iterations": 1, "epochs": 1, "lr": 1e-3}}
    plain = run(hf.load(pretrained=str(tiny_hf_clip), device="cpu"), ttm=True, **quick)
    model = clip(tiny_hf_clip)
    first = run(model, use_cache=store)
    rows = dict(model.rows)
    assert rows["images"] == rows["prepared"] > 0
    again = run(model, use_cache=store)
    assert model.rows == rows and np.array_equal(raw(first), raw(again))
    adapted = run(model, use_cache=store, ttm=True, **quick)
    assert model.rows["prepared"] == 2 * rows["prepared"]
    # Scored after its iteration; and one batch, which is all of it here, before that and once the weights are back.
    assert model.rows["images"] == 4 * rows["images"]
    for name in ("none", "ttm"):
        one, other = (result.scores["shapes_color"][name][0].groups for result in (plain, adapted))
        assert np.array_equal(one, other), name
    assert (
        adapted["datasets"]["shapes_color"]["from_store"]["key"]
        == again["datasets"]["shapes_color"]["from_store"]["key"]
    )
    assert len(entries(tmp_path / "store")) == 1, "adapted scores are never kept"


def test_off_and_the_variable_say_where(tmp_path, monkeypatch):
    monkeypatch.setenv("TTMBENCH_CACHE", str(tmp_path / "variable"))
    run(Counting(tmp_path / "log"))
    assert len(entries(tmp_path / "variable")) == 1
    assert "from_store" not in run(Counting(tmp_path / "log"), use_cache="off")["datasets"]["shapes_color"]
    monkeypatch.delenv("TTMBENCH_CACHE")
    assert cache_folder("OFF") is None and cache_folder(None).name == "store"
    assert cache_folder("~/x") == Path.home() / "x"


def test_changed_data_and_other_pairs_are_scored_again(tmp_path, folder_task, monkeypatch):
    store, folder = tmp_path / "store", folder_task()
    task = folder / "mine.yaml"
    text, rows = task.read_text(), (folder / "groups.jsonl").read_text()

    def calls(**settings) -> int:
        adapter = Counting(tmp_path / "log")
        before = adapter.calls
        result = run(adapter, str(task), use_cache=str(store), **{"limit": None, **settings})
        assert ("from_store" in result["datasets"]["mine"]) == (adapter.calls == before)
        return adapter.calls - before

    assert calls() == 24 and calls() == 0 and calls(batch_size=5) == 0
    assert calls(limit=3) == 12 and calls(limit=3) == 0
    assert calls(task_args={"exif": "ignore"}) == 24 and calls() == 0
    task.write_text(text.replace("- group_match", "- global_assignment_accuracy"))
    assert calls() > 24
    task.write_text(text)
    (folder / "groups.jsonl").write_text(rows.replace("a red circle 0", "a red square 0"))
    assert calls() == 24
    (folder / "groups.jsonl").write_text("".join(reversed(rows.splitlines(keepends=True))))
    assert calls() == 24
    (folder / "groups.jsonl").write_text(rows)
    image = folder / "images" / "0_0.png"
    with Image.open(image) as opened:
        opened.copy().save(image, compress_level=1)
    assert calls() == 24 and calls() == 0
    monkeypatch.setattr("ttmbench.scoring.inputs.open_upright", None)
    assert calls() == 0, "no image is opened"


def test_weights_are_looked_at_not_their_path(tmp_path, tiny_hf_clip):
    """Another checkpoint under the same path, and a model that was trained after it was loaded."""
    store, folder = tmp_path / "store", tmp_path / "model"
    shutil.copytree(tiny_hf_clip, folder)
    settings = {"model_args": {"pretrained": str(folder)}, "use_cache": str(store)}
    first = run("hf", **settings)
    assert "from_store" in run("hf", **settings)["datasets"]["shapes_color"]
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("weight"))
    tensors[name] = tensors[name] * 1.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    second = run("hf", **settings)
    assert "from_store" not in second["datasets"]["shapes_color"] and not np.array_equal(raw(first), raw(second))
    preprocessing = json.loads((folder / "preprocessor_config.json").read_text())
    preprocessing["image_mean"] = [0.1, 0.2, 0.3]
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    assert "from_store" not in run("hf", **settings)["datasets"]["shapes_color"]
    adapter = hf.load(pretrained=str(folder), device="cpu")
    with torch.no_grad():
        next(iter(adapter.parameters())).add_(0.01)
    assert "from_store" not in run(adapter, use_cache=str(store))["datasets"]["shapes_color"]
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["hidden_act"] = "relu"
    (folder / "config.json").write_text(json.dumps(config))
    assert "from_store" not in run("hf", **settings)["datasets"]["shapes_color"], "activations are in no tensor"


def test_models_that_are_not_kept(tmp_path, capsys):
    class Nameless:
        def score_pairs(self, images, captions):
            return np.arange(len(captions), dtype=np.float32)

    class Served(Counting):
        pairs_at_once = 1000

    store = tmp_path / "store"
    run(Nameless(), "shapes_color,shapes_place", use_cache=str(store))
    assert capsys.readouterr().err.count("Nameless has no fingerprint, so its scores are not cached") == 1
    run(Served(tmp_path / "log"), use_cache=str(store))
    assert not capsys.readouterr().err and not entries(store)


def test_debiased_scores_are_kept_with_their_parts(tmp_path, tiny_vlm):
    store = str(tmp_path / "store")
    settings = {"model_args": {"pretrained": str(tiny_vlm("blip-captioner"))}, "use_cache": store, "limit": 3}
    for alpha in (0.0, 0.5, 1.0):
        more = {**settings, "model_args": {**settings["model_args"], "alpha": alpha}}
        one, other = run("visualgpt", **more), run("visualgpt", **more)
        assert "from_store" not in one["datasets"]["shapes_color"] and "from_store" in other["datasets"]["shapes_color"]
        assert np.array_equal(raw(one), raw(other))


def test_no_damage_to_a_file_goes_unnoticed(tmp_path):
    file = tmp_path / "x.safetensors"
    about, tensors = {"kind": "scores", "n": 1}, {"groups": torch.arange(8, dtype=torch.float32).reshape(2, 2, 2)}
    save_sealed(file, tensors, about)
    whole = file.read_bytes()
    assert load_sealed(file)[1] == about and torch.equal(load_sealed(file)[0]["groups"], tensors["groups"])
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for content in [*flipped, whole[:-1], whole[:8], b"", whole + b"\0"]:
        file.write_bytes(content)
        with pytest.raises(Unreadable):
            load_sealed(file)


def rewritten(arrays) -> Callable[[Path, Path], object]:
    """Another entry in the place of one, with a digest that fits."""

    def write(path: Path, _: Path) -> None:
        tensors, about = load_sealed(path)
        save_sealed(path, arrays(tensors["groups"].clone()), about)

    return write


DAMAGE = {
    "bit": lambda path, _: path.write_bytes(
        (content := path.read_bytes())[:-5] + bytes([content[-5] ^ 4]) + content[-4:]
    ),
    "truncated": lambda path, _: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path, _: path.write_bytes(b""),
    "another entry": lambda path, other: path.write_bytes(other.read_bytes()),
    "other shape": rewritten(lambda groups: {"groups": groups[:-1]}),
    "not finite": rewritten(lambda groups: {"groups": torch.full_like(groups, float("nan"))}),
    "more arrays": rewritten(lambda groups: {"groups": groups, "x": torch.zeros(1)}),
    "a folder": lambda path, _: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_entry_is_computed_again(tmp_path, capsys, kind):
    store, model = tmp_path / "store", Counting(tmp_path / "log")
    first = run(model, use_cache=str(store))
    (path,) = entries(store)
    run(model, "shapes_place", use_cache=str(store))
    other = next(one for one in entries(store) if one != path)
    DAMAGE[kind](path, other)
    before = model.calls
    again = run(model, use_cache=str(store))
    said = capsys.readouterr().err
    assert model.calls > before and np.array_equal(raw(first), raw(again))
    assert "from_store" not in again["datasets"]["shapes_color"]
    if kind == "a folder":
        return
    assert str(path) in said
    assert "from_store" in run(model, use_cache=str(store))["datasets"]["shapes_color"]


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path, capsys, monkeypatch):
    model = Counting(tmp_path / "log")
    plain = run(model)
    (tmp_path / "file").write_text("no folder")
    result = run(model, "shapes_color,shapes_place", use_cache=str(tmp_path / "file"))
    assert np.array_equal(raw(plain), raw(result)) and result["status"] == "done"
    assert capsys.readouterr().err.count("cannot be written to") == 1
    store = tmp_path / "store"
    run(model, use_cache=str(store))
    stopped = StoppingScorer(tmp_path / "stopped")
    stopped.limit = 300
    with pytest.raises(KeyboardInterrupt):
        run(stopped, limit=100, use_cache=str(store))
    monkeypatch.setattr(module, "replace_sealed", lambda *_, **__: os.strerror(errno.ENOSPC))
    before = model.calls
    result = run(model, "shapes_color,shapes_place", use_cache=str(store))
    assert "from_store" in result["datasets"]["shapes_color"], "what is there is still read"
    assert model.calls > before and result["status"] == "done"
    said = capsys.readouterr().err
    assert said.count("No space left on device") == 1 and said.count("\n") == 2
    stopped.limit, blocks = 10**6, blocks_of(store)
    run(stopped, limit=100, use_cache=str(store))
    assert len(blocks) == 2 and blocks_of(store) == blocks, "they stay where scores cannot be stored"


def test_a_stopped_pair_model_gets_the_same_bits(tmp_path, tiny_vlm):
    """An image whose captions lie on both sides of a border is encoded on both."""
    model = itm.load(pretrained=str(tiny_vlm("blip")), device="cpu")
    real, limit, calls = model.score_prepared, [3], []

    def score_prepared(self, images, captions):
        calls.append(len(captions))
        if len(calls) > limit[0]:
            raise KeyboardInterrupt
        return real(images, captions)

    model.__class__ = type("Stopping", (type(model),), {"score_prepared": score_prepared, "__module__": __name__})
    store, settings = str(tmp_path / "store"), {"limit": 8, "batch_size": 50}
    task = "shapes_color_global"  # 16 images, 16 captions: 256 pairs, two blocks
    plain = run(itm.load(pretrained=str(tiny_vlm("blip")), device="cpu"), task, **settings)
    with pytest.raises(KeyboardInterrupt):
        run(model, task, use_cache=store, **settings)
    limit[0], before = 10**6, len(calls)
    resumed = run(model, task, use_cache=store, **settings)
    assert len(calls) - before == 3, "one of two blocks was there"
    assert np.array_equal(plain.scores[task]["none"][0].all_pairs, resumed.scores[task]["none"][0].all_pairs)
    before = len(calls)
    run(model, task, use_cache=store, **settings)
    assert len(calls) - before <= 1, "all pairs were there: a few are asked again"


@pytest.mark.parametrize("is_damaged", [False, True])
def test_blocks_of_a_stopped_run_are_used_unless_damaged(tmp_path, capsys, is_damaged):
    """100 groups of 2x2 are 400 pairs in 4 blocks of 128."""
    store, model = tmp_path / "store", StoppingScorer(tmp_path / "log")
    model.limit = 300
    plain = run(Counting(tmp_path / "plain"), limit=100)
    with pytest.raises(KeyboardInterrupt):
        run(model, limit=100, use_cache=str(store))
    blocks = blocks_of(store)
    assert len(blocks) == 2 and not entries(store)
    if is_damaged:
        blocks[0].write_bytes(blocks[1].read_bytes())
    model.limit, before, found = 10**6, model.calls, 2 - is_damaged
    resumed = run(model, limit=100, use_cache=str(store))
    assert model.calls - before == 400 - 128 * found and np.array_equal(raw(plain), raw(resumed))
    assert resumed["datasets"]["shapes_color"]["from_store"]["blocks"] == found
    said = capsys.readouterr().err
    assert (
        f"{found} blocks of scores were cached by an interrupted run" in said and (str(blocks[0]) in said) == is_damaged
    )
    assert len(entries(store)) == 1 and not blocks_of(store), "blocks are gone"
    jsonschema.Draft202012Validator(schema("results")).validate(resumed.document)


def test_two_processes_at_once(tmp_path):
    store, log = tmp_path / "store", tmp_path / "log"
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import torch; from pathlib import Path; from support.small_models import Counting, run\n"
        f"torch.set_num_threads(1); model = Counting(Path({str(log)!r}), seconds=0.05)\n"
        f"run(model, use_cache={str(store)!r}, limit=70, batch_size=30)"
    )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    both = [processes.start(["-c", code], **quiet) for _ in range(2)]  # 280 pairs are three blocks
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    (path,) = entries(store)
    assert not blocks_of(store) and not list(store.rglob("*.tmp"))
    plain = run(Counting(tmp_path / "plain"), limit=70, batch_size=30)
    assert np.array_equal(load_sealed(path)[0]["groups"].numpy(), raw(plain))


def test_hardware_of_cached_scores_is_stated(tmp_path, monkeypatch):
    """The document's hardware is this run's, which did not compute all scores that it loaded."""
    model, settings = StoppingScorer(tmp_path / "log"), {"limit": 100, "use_cache": str(tmp_path / "store")}
    model.limit = 300
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    with pytest.raises(KeyboardInterrupt):
        run(model, **settings)
    model.limit = 10**6
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    for kind, expected in (("blocks", ["AVX512"]), ("date", ["AVX512", "AVX2"])):
        kept = run(model, **settings)["datasets"]["shapes_color"]["from_store"]
        assert kind in kept and [one["cpu_capability"] for one in kept["hardware"]] == expected


@given(st.integers(1, 700), st.integers(1, 90), st.integers(1, 300), st.data())
def test_spans_cover_every_row_once_and_never_split_a_block(rows, block, batch_size, data):
    found = spans(rows, block, batch_size)
    assert [row for span in found for row in range(span.start, span.stop)] == list(range(rows))
    memory, values = MemoryBlocks(), np.arange(rows, dtype=np.float32)
    for span in found:
        assert span.start % block == 0 and (span.stop % block == 0 or span.stop == rows)
        batches = list(BatchSizer(batch_size).map_batches(span.start, span.stop, lambda rows: rows))
        assert [row for batch in batches for row in range(rows)[batch]] == list(range(span.start, span.stop))
        assert all(batch.stop - batch.start <= batch_size for batch in batches)
        assert load(memory, span) is None
        save(memory, span, values[span.start : span.stop])
        assert np.array_equal(load(memory, span), values[span.start : span.stop])
    assert sorted(memory) == list(range(-(-rows // block)))
    gone = data.draw(st.sampled_from(sorted(memory)))
    del memory[gone]
    missing = [span for span in found if load(memory, span) is None]
    assert len(missing) == 1 and missing[0].start <= gone * block < missing[0].stop


def test_a_block_of_another_length_is_not_used():
    memory, (span,) = MemoryBlocks(), spans(5, 8, 2)
    memory.put(0, np.zeros(4, dtype=np.float32))
    assert load(memory, span) is None and load(None, span) is None
    save(None, span, np.zeros(5, dtype=np.float32))
