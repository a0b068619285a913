"""Datasets of the hub, fetched into its cache from a server that answers as the hub does, and read without it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from PIL import Image
from support import task_data
from support.damaged_tars import damaged
from support.task_data import encoded, load, tar_of

from ttmbench.cli import main
from ttmbench.data.catalog import find_task
from ttmbench.data.download.http import Web
from ttmbench.data.fetch import Downloads, plans
from ttmbench.data.loader import data_locations, load_task_data
from ttmbench.errors import DataError
from ttmbench.plugins.registry import build_registry

pytestmark = pytest.mark.filterwarnings("default")

SHA = "0123456789abcdef0123456789abcdef01234567"
COLORS = ("red", "green", "blue")


@pytest.fixture
def hub(site, tmp_path, monkeypatch):
    """The hub's libraries talk to the test's server, with caches of their own."""
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", site.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", site.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", site.url)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "prepared"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return site


def repository(site, name: str, files: dict[str, bytes], revision: str = SHA) -> None:
    """A dataset repository of these files."""
    commit = revision if len(revision) == 40 else SHA
    info = {"id": name, "sha": commit, "private": False, "downloads": 0, "likes": 0, "tags": [], "disabled": False}
    info["siblings"] = [{"rfilename": path} for path in files]
    tree = [
        {"type": "file", "path": path, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
        for path, body in files.items()
    ]
    for at in {revision, commit, "main"}:
        site.put(f"/api/datasets/{name}/revision/{at}", json.dumps(info).encode(), kind="application/json", etag=None)
        site.put(f"/api/datasets/{name}/tree/{at}", json.dumps(tree).encode(), kind="application/json", etag=None)
        for path, body in files.items():
            etag = f'"{hashlib.sha1(body).hexdigest()}"'
            address = f"/datasets/{name}/resolve/{at}/{path.replace(' ', '%20')}"
            site.put(address, body, etag=etag, headers={"X-Repo-Commit": commit})


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


def packed(samples: int) -> bytes:
    """A shard."""
    ends = {"txt": lambda n: b"one", "png": lambda n: encoded(size=(8, 8 + n))}
    return tar_of({f"{n}.{end}": body(n) for n in range(samples) for end, body in ends.items()}, "w")


def task_file(folder: Path, source: dict, **more) -> Path:
    group = {"shape": [1, 2], "n_groups": 3, "images": ["image"], "captions": ["good", "bad"]}
    return task_data.task_file(folder, source, more.pop("group", group), **more)


def fetched(path: Path, data: Path) -> tuple[bool, list]:
    registry = build_registry()
    said: list = []
    (plan,) = plans(registry, {"mine": find_task(registry, str(path))}, data, None)
    return Downloads(registry, data, Web(tries=1), said.append).fetch(plan), said


def read_offline(path: Path) -> list[str]:
    return [group.captions[0] for group in load(path).groups]


@pytest.mark.parametrize("revision", [SHA, None])
def test_tables_are_fetched_at_their_revision_and_read_offline(hub, tmp_path, revision):
    files = {f"data/{split}-00000-of-00001.parquet": table(tmp_path / "t", split) for split in ("test", "train")}
    repository(hub, "me/colors", {**files, "README.md": b"# colors\n", "images.zip": b"not needed"})
    path = task_file(tmp_path, {"kind": "huggingface", "path": "me/colors", "revision": revision, "split": "test"})
    with pytest.raises(DataError, match="not in the cache"):
        read_offline(path)
    done, said = fetched(path, tmp_path / "data")
    assert done and [line.status for line in said] == ["fetched", "ready"], said
    assert not any("images.zip" in at for _, at, _ in hub.log), "what is not a table is left"
    hub.pages.clear()
    requests = len(hub.log)
    assert read_offline(path) == [f"a {color} circle of test" for color in COLORS]
    assert fetched(path, tmp_path / "data")[1][0].status == "present" and len(hub.log) == requests


def asked(hub) -> set[str]:
    """Names of the files that were asked for."""
    return {at.rpartition("/")[2] for _, at, _ in hub.log if "/resolve/" in at}


SHARDS = "data/{}-00000-of-00001.parquet"
ENTRIES = [{"split": split, "path": f"data/{split}-*"} for split in ("test", "train")]
CARD = f"---\n{yaml.safe_dump({'configs': [{'config_name': 'default', 'data_files': ENTRIES}]})}---\n".encode()


@pytest.mark.parametrize(
    ("layout", "card", "source", "splits"),
    [
        *((SHARDS, card, {"split": split}, [split]) for card in (b"# colors", CARD) for split in ("test", "train")),
        *(
            (name, b"# colors", {"split": "train", "data_files": {"train": "**/train-*"}}, ["train"])
            for name in (SHARDS, SHARDS.removeprefix("data/"))
        ),
        ("{}.parquet", b"# colors", {}, ["test", "train"]),
    ],
)
def test_no_other_file_is_fetched_where_names_or_card_or_task_tell(hub, tmp_path, layout, card, source, splits):
    """Neither the other split's shards nor files that are not tables; and the commit is known though none is given."""
    files = {layout.format(split): table(tmp_path / "t", split) for split in ("test", "train")}
    files |= {"README.md": card, "data/images.zip": b"zip", "data/examples.jsonl": b"{}"}
    repository(hub, "me/colors", files)
    path = task_file(tmp_path, {"kind": "huggingface", "path": "me/colors", **source})
    done, said = fetched(path, tmp_path / "data")
    assert done and said[0].name == "dataset me/colors" + (", train" if "data_files" in source else ""), said
    assert asked(hub) == {"README.md", *(layout.format(split).rpartition("/")[2] for split in splits)}
    hub.pages.clear()
    loaded = load(path)
    assert loaded.groups[0].captions[0] == f"a red circle of {splits[0]}" and loaded.source["revision"] == SHA


def test_a_damaged_shard_in_the_cache_is_fetched_again(hub, tmp_path):
    files = {f"test/{shard}.tar": packed(samples=shard + 3) for shard in range(2)}
    repository(hub, "me/shards", files)
    source = {"kind": "webdataset", "path": "me/shards", "revision": SHA, "lines": ["txt"]}
    more = {"kind": "retrieval", "group": {"images": ["image"], "captions": "txt"}, "metrics": ["i2t_recall_at_1"]}
    path = task_file(tmp_path, source, **more)
    assert fetched(path, tmp_path / "data")[0]
    (cached,) = (tmp_path / "hub").rglob("0.tar")
    cached.resolve().write_bytes(damaged(files["test/0.tar"], "flipped bit", member=2))
    with pytest.raises(DataError, match=r"0\.tar .*download it again"):
        read_offline(path)
    hub.log.clear()
    done, said = fetched(path, tmp_path / "data")
    assert done and [line.status for line in said] == ["fetched", "ready"] and said[1].detail == "7 groups", said
    assert not any(at.endswith("1.tar") and verb == "GET" for verb, at, _ in hub.log), "the other one is whole"


def test_a_preview_writes_nothing(hub, tmp_path):
    files = {f"data/{one}-00000-of-00001.parquet": table(tmp_path / "t", one) for one in ("test", "train")}
    repository(hub, "me/colors", files)
    registry = build_registry()
    task = find_task(registry, str(task_file(tmp_path, {"kind": "huggingface", "path": "me/colors", "revision": SHA})))
    (plan,) = plans(registry, {"mine": task}, tmp_path / "data", None)
    (need,) = plan.places[0].needs
    assert need.size(Web(tries=1)) == len(files["data/test-00000-of-00001.parquet"])
    assert not list((tmp_path / "hub").rglob("*.parquet")) and not list((tmp_path / "hub").rglob("README.md"))


def test_an_interrupted_fetch_is_not_taken_for_the_dataset(hub, tmp_path):
    files = {f"data/test-0000{part}-of-00002.parquet": table(tmp_path / "t", "test") for part in (0, 1)}
    repository(hub, "me/colors", files)
    del hub.pages[f"/datasets/me/colors/resolve/{SHA}/data/test-00001-of-00002.parquet"]
    path = task_file(tmp_path, {"kind": "huggingface", "path": "me/colors", "revision": SHA})
    done, said = fetched(path, tmp_path / "data")
    assert not done and said[0].status == "failed"
    registry = build_registry()
    places, _ = data_locations(registry, find_task(registry, str(path)), tmp_path)
    assert places[0].missing() == {f"dataset me/colors at revision {SHA}": "it is not in the cache"}
    repository(hub, "me/colors", files)
    assert fetched(path, tmp_path / "data")[1][0].status == "fetched" and places[0].missing() == {}


def test_a_run_with_the_network_gone_reads_the_cache(hub, tmp_path):
    """Without --offline: nothing tells which files hold the split, and the hub cannot be asked any more."""
    repository(hub, "me/colors", {f"{one}.parquet": table(tmp_path / "t", one) for one in ("test", "train")})
    path = task_file(tmp_path, {"kind": "huggingface", "path": "me/colors", "revision": SHA})
    registry = build_registry()
    assert len(load_task_data(registry, find_task(registry, str(path))).groups) == 3
    hub.pages.clear()
    assert len(load_task_data(registry, find_task(registry, str(path))).groups) == 3


def test_loose_files_are_fetched_and_read_offline(hub, tmp_path):
    image = tmp_path / "x.png"
    Image.new("RGB", (48, 48), "red").save(image)
    rows = [{"image": f"{color}.png", "good": f"a {color} circle", "bad": "none"} for color in COLORS]
    files = {f"all images/{color}.png": image.read_bytes() for color in COLORS}
    repository(hub, "me/loose", {**files, "rows.json": json.dumps(rows).encode(), "weights.bin": b"x"})
    source = {"kind": "hub_files", "path": "me/loose", "revision": SHA, "allow": ["rows.json", "all images/*"]}
    path = task_file(tmp_path, source | {"file": "rows.json", "images": "all images"})
    registry = build_registry()
    places, _ = data_locations(registry, find_task(registry, str(path)), tmp_path)
    (need,) = places[0].needs
    total = len(image.read_bytes()) * 3 + len(json.dumps(rows))
    assert need.missing() == "it is not in the cache, or not all of it" and need.size(Web()) == total
    done, said = fetched(path, tmp_path / "data")
    assert done and said[0].detail.startswith("4 files, "), said
    assert need.missing() is None and not any("weights.bin" in at for _, at, _ in hub.log)
    hub.pages.clear()
    assert read_offline(path) == [f"a {color} circle" for color in COLORS]
    assert need.size(Web()) in (0, None)


@pytest.mark.parametrize("refused", ["/api/", "/resolve/"])
def test_a_gated_dataset_tells_the_page_and_the_token(hub, tmp_path, capsys, refused):
    refusal = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to dataset me/secret is restricted."}
    repository(hub, "me/secret", {"README.md": b"#", "data/test-00000-of-00001.parquet": b"x"})
    for page in [page for at, page in hub.pages.items() if refused in at]:
        page.first = [(401, refusal, b"{}")] * 20
    path = task_file(tmp_path, {"kind": "huggingface", "path": "me/secret", "revision": SHA}, gated=True)
    code = main(["download", str(path), "--data_dir", str(tmp_path / "data")])
    captured = capsys.readouterr()
    assert code == 4 and "the download is incomplete for mine" in captured.err
    assert "accept its terms at https://huggingface.co/datasets/me/secret and set HF_TOKEN" in captured.out


def test_a_mirror_stands_in_for_files_that_are_gone(hub, tmp_path):
    repository(hub, "me/colors", {"data/test-00000-of-00001.parquet": table(tmp_path / "t", "test")})
    first = {"kind": "annotations", "file": "rows.json", "images": "i", "get": {"rows.json": f"{hub.url}/gone.json"}}
    source = {"kind": "first_of", "of": [first, {"kind": "huggingface", "path": "me/colors", "revision": SHA}]}
    done, said = fetched(task_file(tmp_path, source), tmp_path / "data")
    assert done and [line.status for line in said] == ["failed", "failed", "fetched", "ready"], said
    assert said[-1].detail == "3 groups, without annotations rows.json"
