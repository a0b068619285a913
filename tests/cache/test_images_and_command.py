"""``ttmbench cache``, and the parts of the cache beside scores: digests of images, prepared images, blocks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.small_models import MemoryBlocks

import ttmbench
from ttmbench.cache.entry import read_entry
from ttmbench.cache.images import evict
from ttmbench.cache.scores import ScoreCache
from ttmbench.cli import main
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_task_data
from ttmbench.model_adapters import hf
from ttmbench.model_adapters._shared.options import ContrastiveOptions
from ttmbench.model_adapters._shared.pretrained import LoadedModel
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.batches import BatchSizer, load, save, spans
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.scoring.prepare import prepare
from ttmbench.types import Group, ImageRef

QUICK = {"limit": 4, "device": "cpu", "bootstrap_iters": 0}


def run(store: Path, tasks: str = "shapes_color", model="tiny-clip", **settings):
    return ttmbench.simple_evaluate(model, tasks, use_cache=str(store), **{**QUICK, **settings})


def groups_of(folder: Path) -> list[Group]:
    registry = build_registry([])
    return load_task_data(registry, find_task(registry, f"{folder}/mine.yaml"), None, True, None).groups


def cache(capsys, store: Path, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["cache", *words, "--use_cache", str(store)])
    said = capsys.readouterr()
    return code, said.out, said.err


def listed(capsys, store: Path) -> list[dict]:
    return json.loads(cache(capsys, store, "ls", "--json")[1])


@pytest.fixture
def filled(tmp_path, folder_task) -> Path:
    """A cache with scores of three tasks and two models, digests and prepared images."""
    store = tmp_path / "store"
    run(store, f"shapes_color,shapes_place,{folder_task()}/mine.yaml")
    run(store, model_args={"training_seed": 1})
    return store


# --- the command ---------------------------------------------------------------------------------------------


def test_ls_lists_and_an_empty_store_has_nothing(filled, capsys, tmp_path):
    items = listed(capsys, filled)
    assert [item["kind"] for item in items] == ["scores"] * 4 + ["pixels", "prepared"]
    by_task = {item["task"]: item for item in items if item["kind"] == "scores"}
    assert by_task["mine"]["n_groups"] == 4 and by_task["mine"]["task_version"] == 1
    assert by_task["shapes_color"]["model"] == "tiny-clip" and items[-1]["files"] == 8
    size = sum(path.stat().st_size for path in filled.rglob("*.safetensors"))
    assert sum(item["bytes"] for item in items) == size
    code, out, err = cache(capsys, filled, "ls")
    assert code == 0 and not err and "shapes_place" in out and "prepared" in out and "damaged" not in out
    code, out, err = cache(capsys, tmp_path / "nowhere", "ls")
    assert code == 0 and ", empty" in out and not (tmp_path / "nowhere").exists()
    assert json.loads(cache(capsys, tmp_path / "nowhere", "ls", "--json")[1]) == []


def test_path_says_where(tmp_path, capsys, monkeypatch):
    assert cache(capsys, tmp_path, "path")[1] == f"{tmp_path}\n"
    assert json.loads(cache(capsys, tmp_path / "x", "path", "--json")[1]) == {
        "path": str(tmp_path / "x"),
        "exists": False,
    }
    monkeypatch.setenv("TTMBENCH_CACHE", str(tmp_path / "variable"))
    assert main(["cache", "path"]) == 0 and capsys.readouterr().out == f"{tmp_path / 'variable'}\n"
    monkeypatch.setenv("TTMBENCH_CACHE", "off")
    assert main(["cache", "path"]) == 2 and "the cache is off" in capsys.readouterr().err


def test_verify_names_every_damaged_file(filled, capsys):
    code, out, err = cache(capsys, filled, "verify")
    files = sorted(filled.rglob("*.safetensors"))
    assert code == 0 and f"{len(files)} files, none damaged" in out and not err
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        code, out, err = cache(capsys, filled, "verify")
        assert code == 1 and out.startswith(f"{path}: ") and out.count("\n") == 1 and "1 of" in err
        path.write_bytes(whole)
    scores = sorted((filled / "scores").rglob("*.safetensors"))
    scores[0].write_bytes(scores[1].read_bytes())
    found = json.loads(cache(capsys, filled, "verify", "--json")[1])
    assert found["files"] == len(files)
    assert found["damaged"] == [{"path": str(scores[0]), "reason": "it belongs to another place"}]
    assert any(item["damaged"] for item in listed(capsys, filled))
    assert "damaged" in cache(capsys, filled, "ls")[1]
    code, out, _ = cache(capsys, filled, "prune", "--damaged")
    assert code == 0 and "1 files" in out and not scores[0].exists() and scores[1].exists()
    assert cache(capsys, filled, "verify")[0] == 0


def test_files_of_another_version_are_recognised_reported_and_pruned(tmp_path, folder_task, capsys, monkeypatch):
    """Scores, blocks, digests and prepared images: none is read by a version whose keys are others."""
    from ttmbench.cache import entry, key, maintenance

    store, task = tmp_path / "store", f"{folder_task()}/mine.yaml"
    with monkeypatch.context() as patched:
        for module in (entry, key):
            patched.setattr(module, "SCORING_VERSION", 1)
        earlier = run(store, task)
    before = sorted(store.rglob("*.safetensors"))
    assert {item["kind"] for item in listed(capsys, store)} == {"scores", "pixels", "prepared"}
    about, arrays = read_entry(before[-1], lambda about, arrays: (about, arrays))
    about = {name: value for name, value in about.items() if name not in ("ttmbench", "score_code")}
    entry.write_entry(before[-1], about, arrays)  # as before files said it
    assert all(item["outdated"] for item in listed(capsys, store))
    now = run(store, task)
    assert "from_store" not in now["datasets"]["mine"]
    assert np.array_equal(*(result.scores["mine"]["none"][0].groups for result in (earlier, now)))
    code, out, err = cache(capsys, store, "ls")
    assert code == 0 and out.count("(outdated)") == 3 and f"{len(before)} files" in err and "prune --outdated" in err
    assert "written by another version" in cache(capsys, store, "verify")[2]
    monkeypatch.setenv("TTMBENCH_CACHE", str(store))
    assert main(["doctor", "tiny-clip"]) == 0 and "prune --outdated" in capsys.readouterr().out
    assert cache(capsys, store, "prune", "--outdated")[0] == 0
    assert not set(before) & set(store.rglob("*.safetensors")) and "from_store" in run(store, task)["datasets"]["mine"]
    monkeypatch.setattr(maintenance, "__version__", "99")
    kinds = {item["kind"] for item in listed(capsys, store) if item["outdated"]}
    assert kinds == {"scores", "prepared"}, "digests of pixels outlive releases"


def test_prune_removes_what_it_is_told(filled, capsys):
    before = sorted(filled.rglob("*.safetensors"))
    assert cache(capsys, filled, "prune")[0] == 2
    assert cache(capsys, filled, "ls", "--task", "x")[0] == 2
    code, out, _ = cache(capsys, filled, "prune", "--task", "shapes_*", "--model", "tiny-*", "--dry_run")
    assert code == 0 and "3 files" in out and "would be removed" in out
    assert "0 files" in cache(capsys, filled, "prune", "--task", "shapes_*", "--model", "siglip*")[1]
    assert sorted(filled.rglob("*.safetensors")) == before
    assert "0 files" in cache(capsys, filled, "prune", "--kind", "blocks,temporary")[1]
    code, _, err = cache(capsys, filled, "prune", "--kind", "bloks")
    assert code == 2 and "--kind must be scores, blocks, pixels, prepared, temporary" in err
    told = json.loads(cache(capsys, filled, "prune", "--task", "shapes_place", "--json")[1])
    assert [item["task"] for item in told["removed"]] == ["shapes_place"] and told["bytes"] > 0
    left = listed(capsys, filled)
    assert "shapes_place" not in {item["task"] for item in left} and len(left) == 5
    old = time.time() - 40 * 24 * 3600
    for path in (filled / "prepared").rglob("*.safetensors"):
        os.utime(path, (old, old))
    assert "0 files" in cache(capsys, filled, "prune", "--older_than", "30", "--kind", "scores")[1]
    assert cache(capsys, filled, "prune", "--older_than", "30")[0] == 0
    assert "prepared" not in {item["kind"] for item in listed(capsys, filled)}
    assert not (filled / "prepared").exists(), "no empty folder is left"
    assert cache(capsys, filled, "prune", "--all")[0] == 0 and listed(capsys, filled) == []


def test_prune_by_size_keeps_what_was_used_last(filled, capsys):
    files = sorted(filled.rglob("*.safetensors"))
    for age, path in enumerate(files):
        os.utime(path, (1e9 - age, 1e9 - age))
    limit = sum(path.stat().st_size for path in files[:5])
    assert cache(capsys, filled, "prune", "--max_size", f"{limit}B")[0] == 0
    assert sorted(filled.rglob("*.safetensors")) == files[:5]
    assert cache(capsys, filled, "prune", "--max_size", "much")[0] == 2


def test_nothing_but_the_stores_own_files_is_touched(filled, capsys, tmp_path):
    elsewhere = tmp_path / "elsewhere.safetensors"
    elsewhere.write_bytes(b"precious")
    mine = [
        filled / "scores" / "mine" / "scores.safetensors",
        filled / "scores" / "notes.txt",
        filled / "model.safetensors",
        filled / "prepared" / "cat.safetensors",
    ]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")
    link = filled / "scores" / ("0" * 32) / f"{'0' * 64}.safetensors"
    link.parent.mkdir()
    link.symlink_to(elsewhere)
    inside = filled / "scores" / ("1" * 32)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"{'1' * 64}.safetensors").write_text("precious")
    inside.symlink_to(tmp_path / "other")
    assert cache(capsys, filled, "verify")[0] == 0
    assert cache(capsys, filled, "prune", "--all")[0] == 0
    assert all(path.read_text() == "precious" for path in [*mine, elsewhere])
    assert list((tmp_path / "other").iterdir()) and link.is_symlink()


def test_text_of_a_header_cannot_act_on_the_terminal(tmp_path, capsys):
    from ttmbench.cache.entry import write_entry

    key, data = "a" * 64, "b" * 64
    about = {"kind": "scores", "key": key, "data_sha256": data, "task": "\x1b[31m[bold]x", "model_name": "[link=y]z"}
    write_entry(tmp_path / "scores" / key[:32] / f"{data}.safetensors", about, {})
    code, out, _ = cache(capsys, tmp_path, "ls")
    assert code == 0 and "\x1b" not in out and "[bold]x" in out and "[link=y]z" in out


def test_temporary_files_of_killed_runs_and_images_of_an_older_folder_go(filled, capsys):
    folder, images = next((filled / "scores").iterdir()), filled / "pictures" / ("0" * 32) / "ab"
    images.mkdir(parents=True)
    new, *old = (
        folder / ".x.safetensors.abc1.tmp",
        folder / ".x.safetensors.abc2.tmp",
        images / f"{'ab' * 32}.safetensors",
    )
    for path in (new, *old):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - 7200 * (path != new),) * 2)
    others = len(listed(capsys, filled)) - 2
    assert [item["kind"] for item in listed(capsys, filled)].count("temporary") == 2
    assert cache(capsys, filled, "prune", "--kind", "temporary")[0] == 0
    assert new.exists() and not old[0].exists() and not (filled / "pictures").exists()
    assert len(listed(capsys, filled)) == others


@pytest.mark.parametrize("kind", ["scores", "prepared"])
def test_a_folder_that_is_a_link_is_not_walked(filled, capsys, tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    (filled / kind).rename(elsewhere)
    (filled / kind).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    assert kind not in {item["kind"] for item in listed(capsys, filled)}
    assert cache(capsys, filled, "prune", "--all")[0] == 0
    evict(filled, 0)
    assert sorted(elsewhere.rglob("*")) == before and len(before) > 2


# --- digests of images -------------------------------------------------------------------------------------


def opened(monkeypatch) -> list[str]:
    from ttmbench.scoring import fingerprint

    names: list[str] = []
    real = fingerprint.open_upright

    def counted(image: ImageRef, group_id: str):
        names.append(image.name)
        return real(image, group_id)

    monkeypatch.setattr(fingerprint, "open_upright", counted)
    return names


def test_a_hit_opens_no_image_and_still_sees_a_change(tmp_path, folder_task, monkeypatch):
    store, folder = tmp_path / "store", folder_task()
    task = f"{folder}/mine.yaml"
    names = opened(monkeypatch)
    first = run(store, task, limit=None)
    assert len(names) == 12
    again = run(store, task, limit=None)
    assert (
        len(names) == 12 and "from_store" in again["datasets"]["mine"] and again["task_hashes"] == first["task_hashes"]
    )
    assert (
        ttmbench.simple_evaluate("tiny-clip", task, **{**QUICK, "limit": None})["task_hashes"] == first["task_hashes"]
    )
    names.clear()
    Image.new("RGB", (30, 24), (1, 2, 3)).save(folder / "images" / "0_0.png")
    changed = run(store, task, limit=None)
    assert changed["task_hashes"] != first["task_hashes"] and "from_store" not in changed["datasets"]["mine"]
    assert set(names) == {"0_0.png"}, "only the image that changed"
    same_pixels = Image.open(folder / "images" / "1_0.png")
    same_pixels.save(folder / "images" / "1_0.png", compress_level=1, pnginfo=None)
    third = run(store, task, limit=None)
    assert third["task_hashes"] == changed["task_hashes"] and "from_store" in third["datasets"]["mine"]


def test_another_decoder_decodes_again(tmp_path, folder_task, monkeypatch):
    from ttmbench.cache import images

    store, task = tmp_path / "store", f"{folder_task()}/mine.yaml"
    run(store, task)
    names = opened(monkeypatch)
    run(store, task)
    assert not names
    monkeypatch.setattr(images, "decoder", lambda: "another")
    assert "from_store" in run(store, task)["datasets"]["mine"] and len(names) == 8


def test_a_damaged_table_of_digests_is_made_again(tmp_path, folder_task, capsys):
    store, task = tmp_path / "store", f"{folder_task()}/mine.yaml"
    first = run(store, task)
    (path,) = (store / "pixels").iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    capsys.readouterr()
    again = run(store, task)
    assert again["task_hashes"] == first["task_hashes"]
    assert str(path) in capsys.readouterr().err and read_entry(path, lambda about, arrays: arrays)[
        "pictures"
    ].shape == (8, 64)


def test_a_missing_image_is_named_as_without_the_store(tmp_path, folder_task):
    store, folder = tmp_path / "store", folder_task()
    run(store, f"{folder}/mine.yaml")
    groups = groups_of(folder)
    (folder / "images" / "2_1.png").unlink()
    with pytest.raises(ttmbench.errors.DataError, match=r"image 2_1\.png of group g2 cannot be read"):
        Fingerprint(groups, ScoreCache(store).pixels("mine")).add_remaining()


# --- prepared images ---------------------------------------------------------------------------------------


@pytest.fixture
def groups(folder_task) -> list[Group]:
    return groups_of(folder_task())


def test_prepared_images_are_the_same_and_shared_by_checkpoints(tmp_path, groups, tiny_siglip, monkeypatch):
    model, store = hf.load(pretrained=str(tiny_siglip), device="cpu"), ScoreCache(tmp_path / "store")
    plain, fingerprint = prepare(model, groups, 5)
    prepare(model, groups[:2], 5, kept=store.prepared(model))
    names = opened(monkeypatch)
    some, digest = prepare(model, groups, 5, kept=store.prepared(model))
    assert len(names) == 8, "four of twelve were there"
    other = hf.load(pretrained=str(tiny_siglip), device="cpu", dtype="bf16")
    names.clear()
    kept, again = prepare(other, groups, 3, kept=store.prepared(other))
    assert not names and fingerprint == digest == again
    for one in (some, kept):
        assert set(one.images) == set(plain.images)
        assert all(torch.equal(one.images[name], plain.images[name]) for name in plain.images)
        assert one.images["pixel_values"].dtype == torch.uint8
    other.image_processor.size = {"height": 16, "width": 16}
    assert store.prepared(hf.load(pretrained=str(tiny_siglip), device="cpu"))._key == store.prepared(model)._key
    asked = ContrastiveOptions(pretrained="x", device="cpu")
    changed = hf.TransformersModel(LoadedModel(model.model, None, model.tokenizer, other.image_processor), asked)
    assert store.prepared(changed)._key != store.prepared(model)._key


def test_a_damaged_prepared_image_is_made_again(tmp_path, groups, tiny_siglip, capsys):
    model, store = hf.load(pretrained=str(tiny_siglip), device="cpu"), tmp_path / "store"
    plain, _ = prepare(model, groups, 5, kept=ScoreCache(store).prepared(model))
    files = sorted((store / "prepared").rglob("*.safetensors"))
    assert len(files) == 12
    files[0].write_bytes(files[1].read_bytes())
    files[2].write_bytes(files[2].read_bytes()[:50])
    again, _ = prepare(model, groups, 5, kept=ScoreCache(store).prepared(model))
    assert torch.equal(plain.images["pixel_values"], again.images["pixel_values"])
    said = capsys.readouterr().err
    assert str(files[0]) in said and str(files[2]) in said and said.count("\n") == 2


def test_prepared_images_stay_under_their_limit(tmp_path, folder_task, monkeypatch, capsys):
    store, task = tmp_path / "store", f"{folder_task()}/mine.yaml"
    monkeypatch.setenv("TTMBENCH_PREPARED_LIMIT", "0")
    run(store, task, limit=None)
    assert not (store / "prepared").exists()
    monkeypatch.setenv("TTMBENCH_PREPARED_LIMIT", "1GB")
    run(store, task, limit=None, model_args={"training_seed": 1})
    files = sorted((store / "prepared").rglob("*.safetensors"))
    assert len(files) == 12
    for age, path in enumerate(files):
        os.utime(path, (1e9 - age, 1e9 - age))
    each = files[0].stat().st_size
    monkeypatch.setenv("TTMBENCH_PREPARED_LIMIT", str(5 * each))
    run(store, task, limit=1, ttm=True, ttm_args={"iterations": 1, "epochs": 1})  # uses two, writes none
    assert len(sorted((store / "prepared").rglob("*.safetensors"))) == 12
    from ttmbench.cache.images import evict

    used = [path for path in files if path.stat().st_mtime > 2e9 or path.stat().st_mtime > 1e9 + 1]
    evict(store, 5 * each)
    left = sorted((store / "prepared").rglob("*.safetensors"))
    assert len(used) == 2 and set(used) <= set(left) and sum(path.stat().st_size for path in left) <= 0.9 * 5 * each
    assert set(left) - set(used) == set([path for path in files if path not in used][: len(left) - 2])
    monkeypatch.setenv("TTMBENCH_PREPARED_LIMIT", "lots")
    with pytest.raises(ttmbench.errors.UsageError, match="TTMBENCH_PREPARED_LIMIT: 'lots'"):
        run(store, task)


def test_rendered_images_and_unstated_preprocessing_are_not_kept(tmp_path, tiny_siglip):
    store = tmp_path / "store"
    run(store, model_args={"pretrained": str(tiny_siglip)}, model="hf")
    assert not (store / "prepared").exists() and not (store / "pixels").exists()

    class Plain:
        def fingerprint(self):
            return {"weights": "x"}

    assert ScoreCache(store).prepared(Plain()) is None and ScoreCache(store).prepared(object()) is None


# --- blocks --------------------------------------------------------------------------------------------------


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
        assert load(memory, "x", span) is None
        save(memory, "x", span, values[span.start : span.stop])
        assert np.array_equal(load(memory, "x", span), values[span.start : span.stop])
    assert sorted(number for _, number in memory) == list(range(-(-rows // block)))
    gone = data.draw(st.sampled_from(sorted(memory)))
    del memory[gone]
    missing = [span for span in found if load(memory, "x", span) is None]
    assert len(missing) == 1 and missing[0].start <= gone[1] * block < missing[0].stop


def test_a_block_of_another_length_is_not_used():
    memory, (span,) = MemoryBlocks(), spans(5, 8, 2)
    memory.put("x", 0, np.zeros(4, dtype=np.float32))
    assert load(memory, "x", span) is None and load(None, "x", span) is None
    save(None, "x", span, np.zeros(5, dtype=np.float32))
