"""Datasets of the hub, fetched into its cache from a server that answers as the hub does, and read without it."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from PIL import Image
from support import task_data
from support.hub_repos import write_repository
from support.hub_server import HubServer
from support.task_data import encoded, load, run, write

from ttmbench.data.availability import amount
from ttmbench.errors import DataError

pytestmark = pytest.mark.filterwarnings("default")

SHA = "0123456789abcdef0123456789abcdef01234567"
COLORS = ("red", "green", "blue")
GROUP = {"shape": [1, 2], "n_groups": 3, "images": ["image"], "captions": ["good", "bad"]}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub's libraries talk to the stand-in, with caches of their own."""
    import datasets
    from huggingface_hub import constants, file_download, utils

    with HubServer(tmp_path / "origin") as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        for module in (constants, file_download):  # before 1.0 each has its own
            template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        getattr(utils, "reset_sessions", lambda: None)()  # before 1.0 a session that was made offline stays so
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


def repository(hub, name: str, files: dict[str, bytes]) -> None:
    """A dataset repository of these files."""
    folder = write_repository(hub.root, "datasets", name, {"main": SHA}).folder / SHA
    for path, body in files.items():
        write(folder / path, body)


def table(folder: Path, split: str) -> bytes:
    import datasets

    rows = {
        "image": [Image.new("RGB", (48, 48), color) for color in COLORS],
        "good": [f"a {color} circle of {split}" for color in COLORS],
        "bad": [f"no {color} circle" for color in COLORS],
    }
    folder.mkdir(exist_ok=True)
    datasets.Dataset.from_dict(rows).to_parquet(folder / f"{split}.parquet")
    return (folder / f"{split}.parquet").read_bytes()


def task_file(folder: Path, source: dict, **more) -> Path:
    return task_data.task_file(folder, source, more.pop("group", GROUP), **more)


@pytest.fixture
def fetched(tmp_path, capsys):
    """Downloads a task: exit code, and what is said of each thing."""

    def fetched(path: Path, *more: str) -> tuple[int, dict[str, str]]:
        code, out, _ = run(capsys, "download", path, "--data_dir", tmp_path / "data", *more)
        lines = [re.split(r"  +", line) for line in out.splitlines()]
        return code, {name.rstrip(":"): " ".join(rest) for name, *rest in lines}

    return fetched


def planned_size(size: int) -> str:
    """What ``--dry_run`` prints of an amount of bytes; huggingface_hub before 1.0 does not tell it."""
    from huggingface_hub import snapshot_download

    known = "dry_run" in inspect.signature(snapshot_download).parameters
    return f"would fetch {amount(size) if known else 'size unknown'}"


def read_offline(path: Path) -> list[str]:
    return [group.captions[0] for group in load(path).groups]


def asked(hub) -> set[str]:
    """Names of the files that were sent."""
    return {name.rpartition("/")[2] for name in hub.fetched()}


SHARDS = "data/{}-00000-of-00001.parquet"


@pytest.mark.parametrize(
    ("layout", "source", "revision"),
    [
        (SHARDS, {"split": "train"}, SHA),
        (SHARDS, {"split": "train", "data_files": "**/train-*"}, None),
        (SHARDS.removeprefix("data/"), {"split": "train", "data_files": "**/train-*"}, SHA),
        ("{}.parquet", {}, None),
        ("default/{}/0000.parquet", {}, SHA),
    ],
)
def test_the_tables_of_the_split_are_fetched_and_read_offline(hub, tmp_path, fetched, layout, source, revision):
    """Neither the other split's tables nor other files; and the commit is known though none is given."""
    split = source.get("split", "test")
    files = {layout.format(one): table(tmp_path / "t", one) for one in ("test", "train")}
    repository(hub, "me/colors", {**files, "README.md": b"# colors", "data/images.zip": b"zip", "data/x.jsonl": b"{}"})
    path = task_file(tmp_path, {"kind": "huggingface", "path": "me/colors", "revision": revision, **source})
    with pytest.raises(DataError, match="not in the cache"):
        read_offline(path)
    where = "dataset me/colors" + (f" at revision {SHA}" if revision else "") + f", {source.get('data_files', split)}"
    _, planned = fetched(path, "--dry_run")
    assert planned[where].startswith(planned_size(len(files[layout.format(split)])))
    assert not list((tmp_path / "hub").rglob("*.parquet"))
    code, said = fetched(path)
    assert code == 0 and said[where].startswith("fetched ") and said["mine"] == "ready 3 groups"
    assert asked(hub) == {layout.format(split).rpartition("/")[2]}
    hub.misbehave("", 503, times=1000)
    loaded = load(path)
    assert loaded.groups[0].captions[0] == f"a red circle of {split}" and loaded.source["revision"] == SHA
    assert [group.captions[0] for group in load(path, offline=False).groups] == read_offline(path)
    assert fetched(path)[1][where].startswith("present ")


def test_an_interrupted_fetch_is_not_taken_for_the_dataset(hub, tmp_path, fetched, capsys):
    files = {f"data/test-0000{part}-of-00002.parquet": table(tmp_path / "t", "test") for part in (0, 1)}
    repository(hub, "me/colors", files)
    hub.misbehave("test-00001-of-00002", 403, times=1000)
    source = {"kind": "huggingface", "path": "me/colors", "revision": SHA}
    path = task_file(tmp_path, source, group={**GROUP, "n_groups": 6})
    assert fetched(path)[0] == 4
    assert run(capsys, "doctor", path)[0] == 4
    with pytest.raises(DataError, match=r"not in the cache|1 of 2 files"):
        read_offline(path)
    hub.forget()
    assert fetched(path)[0] == 0 and run(capsys, "doctor", path)[0] == 0


def test_loose_files_are_fetched_and_read_offline(hub, tmp_path, fetched):
    rows = [{"image": f"{color}.png", "good": f"a {color} circle", "bad": "none"} for color in COLORS]
    files = {f"all images/{color}.png": encoded(color) for color in COLORS}
    repository(hub, "me/loose", {**files, "rows.json": json.dumps(rows).encode(), "weights.bin": b"x"})
    source = {"kind": "hub_files", "path": "me/loose", "revision": SHA, "allow": ["rows.json", "all images/*"]}
    path = task_file(tmp_path, source | {"file": "rows.json", "images": "all images"})
    total, where = sum(map(len, files.values())), f"dataset me/loose at revision {SHA}, rows.json"
    assert fetched(path, "--dry_run")[1][where].startswith(planned_size(total + len(json.dumps(rows))))
    code, said = fetched(path)
    assert code == 0 and said[where].startswith("fetched 4 files, ") and "weights.bin" not in asked(hub)
    hub.misbehave("", 503, times=1000)
    assert read_offline(path) == [f"a {color} circle" for color in COLORS]
