"""Files of models: repositories as adapters see them, weights in pickles, and packages that are missing."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from types import SimpleNamespace
from unittest import mock

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from support.adapter_inputs import Reduced

from ttmbench.errors import DataError
from ttmbench.model_adapters import catalog
from ttmbench.model_adapters._shared.options import HubFiles
from ttmbench.model_adapters._shared.pretrained import find, find_repository, locate, read_weights
from ttmbench.plugins.registry import model_arguments

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub's cache with one repository at two commits, of which main is the newer."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    root = tmp_path / "hub" / "models--me--model"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(NEW, encoding="utf-8")
    for commit in (OLD, NEW):
        folder = root / "snapshots" / commit
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text("{}", encoding="utf-8")
    return root


def answering(monkeypatch, answer):
    """Replaces the question for a repository's files."""
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", mock.Mock(side_effect=[answer, answer]))


@pytest.mark.parametrize("error", [ValueError("no answer"), ConnectionError("refused")])
def test_without_an_answer_the_cache_is_taken(monkeypatch, cache, error):
    answering(monkeypatch, error)
    assert find_repository("me/model").commit == NEW
    assert find_repository("me/model", OLD).commit == OLD


def test_offline_nothing_is_asked(monkeypatch, cache):
    answering(monkeypatch, AssertionError("asked"))
    found = find(HubFiles(pretrained="me/model", offline=True))
    assert found.files.commit == NEW and found.files.folder == cache / "snapshots" / NEW
    said = {"name": "me/model", "commit": OLD, "files": ["model.safetensors"], "format": "safetensors"}
    assert locate(pretrained="me/model", revision=OLD, offline=True)[0].provenance() == said
    for revision in ("v2", "../main"):
        with pytest.raises(DataError, match=f"not in {re.escape(f'{constants.HF_HUB_CACHE} at revision {revision}')};"):
            find(HubFiles(pretrained="me/model", revision=revision, offline=True))
    (cache / "snapshots" / NEW / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"incomplete: missing model\.safetensors; `ttmbench download"):
        find(HubFiles(pretrained="me/model", offline=True))


def test_a_repository_that_changes_meanwhile_is_no_mixture(monkeypatch, cache):
    files = [SimpleNamespace(rfilename=name) for name in ("config.json", "model.safetensors")]
    answering(monkeypatch, SimpleNamespace(sha=OLD, siblings=files))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(cache / "snapshots" / NEW))
    with pytest.raises(DataError, match="was changed on the Hub while it was fetched"):
        find(HubFiles(pretrained="me/model"))


def test_names_are_pinned_and_weights_of_ones_own_leave_the_pin_behind():
    named = [spec for spec in catalog.adapters() if spec.card is not None and not spec.name.startswith("tiny-clip")]
    unpinned = {spec.name for spec in named if "revision" not in spec.model_args}
    no_commit = {spec.name for spec in named if spec.card.page or "commit is unknown" in spec.card.note}
    assert unpinned == {"flava-itc", "flava-itm", "tripletclip-cc3m", "spec-clip", *no_commit}
    for spec in named:
        if spec.name not in unpinned and not spec.card.refused:
            assert re.fullmatch("[0-9a-f]{40}", spec.model_args["revision"]), spec.name
            assert "revision" not in model_arguments(spec, {"pretrained": "./mine"}), spec.name
            assert model_arguments(spec, {"revision": "main"})["revision"] == "main"


SCALAR, F8 = np._core.multiarray.scalar, np.dtype("f8")
NUMBERS = {
    "a float64": np.float64(1e-6),
    "an int64": np.int64(1),
    "a record": np.array([(1, 2.0)], dtype="i4,f8")[0],
    # The first two end the process in numpy 2.0, with all of numpy's own functions allowed; the third takes 2 GB.
    "an object without content": Reduced(SCALAR, (Reduced(np.dtype, ("O",)),)),
    "a string without content": Reduced(SCALAR, (Reduced(np.dtype, ("T",)),)),
    "a large record": Reduced(SCALAR, (Reduced(np.dtype, ("V2000000000",)),)),
    "a number of 4 bytes": Reduced(SCALAR, (F8, b"1234")),
    "a dtype with other flags": Reduced(np.dtype, ("f8", False, True), (3, "<", None, None, None, -1, -1, 63)),
}


@pytest.mark.parametrize("numpy_1", [False, True], ids=["numpy 2", "numpy 1"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_numbers_of_numpy_are_skipped_whatever_they_hold(tmp_path, numpy_1, zipped):
    path = tmp_path / "epoch_1.pt"
    torch.save({**NUMBERS, "state_dict": {"w": torch.arange(3.0)}}, path, _use_new_zipfile_serialization=zipped)
    names = (b"numpy._core.multiarray", b"numpy.core.multiarray")
    if numpy_1 and not zipped:
        path.write_bytes(path.read_bytes().replace(*names))
    elif numpy_1:
        with zipfile.ZipFile(path) as read:
            held = {item.filename: read.read(item).replace(*names) for item in read.infolist()}
        with zipfile.ZipFile(path, "w") as written:
            for name, data in held.items():
                written.writestr(name, data)
    assert (b"numpy._core" in path.read_bytes()) is not numpy_1
    found = read_weights(path)
    assert torch.equal(found["state_dict"]["w"], torch.arange(3.0))
    assert {type(found[name]).__name__ for name in NUMBERS} == {"_Skipped"}


HOSTILE = {
    "a program": lambda trace: Reduced(os.system, (f"touch {trace}",)),
    "a file": lambda trace: Reduced(open, (str(trace), "w")),
    "an array": lambda _: np.arange(3.0),
    "an array of objects": lambda _: np.array([{}, []], dtype=object),
    "a dtype's class": lambda _: Reduced(type(F8), ()),
    "a generator": lambda _: np.random.default_rng(0),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_everything_else_is_refused_and_nothing_is_run(tmp_path, what):
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    torch.save({"visual.proj": HOSTILE[what](trace)}, path)
    with warnings.catch_warnings(), pytest.raises(DataError, match=r"evil\.pt") as caught:
        warnings.simplefilter("error")
        read_weights(path)
    assert not trace.exists()
    assert "\n" not in str(caught.value) and "weights_only` set to `False" not in str(caught.value)
