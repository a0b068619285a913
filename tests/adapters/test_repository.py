"""Repositories of the hub as adapters see them: listed once, asked again while busy, taken from the cache without it.

The hub's protocol itself is in ``tests/hub``; here its library is replaced.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants

from ttmbench.errors import DataError
from ttmbench.model_adapters import catalog
from ttmbench.model_adapters._shared.options import HubFiles
from ttmbench.model_adapters._shared.pretrained import find, find_repository, locate
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


def answering(monkeypatch, *answers):
    """Replaces the question for a repository's files; an exception is raised, anything else returned, one a call."""
    given = list(answers)

    def model_info(self, name, revision=None):
        answer = given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    return given


def listing(commit: str, *names: str) -> SimpleNamespace:
    return SimpleNamespace(sha=commit, siblings=[SimpleNamespace(rfilename=name) for name in names])


@pytest.mark.parametrize("error", [ValueError("no answer"), ConnectionError("refused")])
def test_without_an_answer_the_cache_is_taken(monkeypatch, cache, error):
    answering(monkeypatch, error, error)
    assert find_repository("me/model").commit == NEW
    assert find_repository("me/model", OLD).commit == OLD


def test_offline_nothing_is_asked(monkeypatch, cache):
    answering(monkeypatch)
    found = find(HubFiles(pretrained="me/model", offline=True))
    assert found.files.commit == NEW and found.files.folder == cache / "snapshots" / NEW
    assert locate(pretrained="me/model", revision=OLD, offline=True)[0].provenance() == {
        "name": "me/model",
        "commit": OLD,
        "files": ["model.safetensors"],
        "format": "safetensors",
    }
    for revision in ("v2", "../main"):
        with pytest.raises(DataError, match=f"not in {re.escape(f'{constants.HF_HUB_CACHE} at revision {revision}')};"):
            find(HubFiles(pretrained="me/model", revision=revision, offline=True))
    (cache / "snapshots" / NEW / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"incomplete: missing model\.safetensors; `ttmbench download"):
        find(HubFiles(pretrained="me/model", offline=True))


def test_a_repository_that_changes_meanwhile_is_no_mixture(monkeypatch, cache):
    answering(monkeypatch, listing(OLD, "config.json", "model.safetensors"))
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
