"""Folders of the authors' own code as the data folder, copies that lack a part, and what they say of their commit."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image
from support import task_data
from support.task_data import encoded, find, write

from ttmbench.cli import main
from ttmbench.data.hub_tables import files_of_split, missing_shards
from ttmbench.data.loader import data_locations
from ttmbench.errors import DataError, OutOfReachError
from ttmbench.plugins.registry import build_registry

pytestmark = pytest.mark.filterwarnings("default")
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache" / "datasets")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))


def load(name: str, data: Path, groups: int, **source: object):
    return task_data.load(task_data.changed(name, source, n_groups=groups), data)


def missing(name: str, data: Path, **changes: object) -> list[dict[str, str]]:
    task = find(name).with_source(changes)
    return [place.missing() for place in data_locations(build_registry(), task, data)[0]]


# --- SugarCrepe and MMVP -------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["sugarcrepe", "."])
def test_sugarcrepe_with_its_images_beside_its_files(tmp_path, folder):
    for name in ("1.jpg", "2.jpg"):
        write(tmp_path / folder / "val2017" / name, encoded(size=(8, 8)))
    write(tmp_path / folder / "swap_att.json", {"0": {"filename": "1.jpg", "caption": "yes", "negative_caption": "no"}})
    loaded = load("sugarcrepe_swap_att", tmp_path, 1)
    assert loaded.source["images"] == ("val2017" if folder == "." else "sugarcrepe/val2017")
    assert loaded.groups[0].images[0].open().size == (8, 8) and loaded.source.get("revision") is None
    assert missing("sugarcrepe_swap_att", tmp_path)[0] == {}
    (tmp_path / folder / "val2017" / "1.jpg").unlink()
    (why,) = missing("sugarcrepe_swap_att", tmp_path)[0].values()
    assert why.startswith("image 1.jpg is not in ") and "fetches it whole" in why


def mmvp(folder: Path, numbers: int = 4) -> None:
    for number in range(1, numbers + 1):
        write(folder / "MLLM_VLM Images" / "Color" / f"{number}.jpg", encoded(size=(8, number)))
    rows = [f"{number},Color,Statement {number}" for number in range(1, numbers + 1)]
    write(folder / "Questions.csv", "\n".join(["Question ID,Type,Statement", *rows]))


@pytest.mark.parametrize("folder", ["mmvp_vlm", "."])
def test_mmvp_in_the_data_folder_is_read_before_the_hub(tmp_path, folder):
    mmvp(tmp_path / folder)
    loaded = load("mmvp_vlm", tmp_path, 2)
    assert [image.open().size for image in loaded.groups[1].images] == [(8, 3), (8, 4)]
    assert loaded.source["revision"] is None and loaded.source["folder"] == str(tmp_path / folder)
    assert missing("mmvp_vlm", tmp_path) == [{}]
    (tmp_path / folder / "MLLM_VLM Images" / "Color" / "3.jpg").unlink()
    (why,) = missing("mmvp_vlm", tmp_path)[0].values()
    assert why == f"incomplete: image Color/3.jpg is not in {tmp_path / folder}"
    with pytest.raises(DataError, match=r"image Color/3\.jpg of group 3-4 is not in"):
        load("mmvp_vlm", tmp_path, 2)


def test_doctor_finds_an_image_that_the_hubs_cache_lacks(tmp_path):
    revision = find("mmvp_vlm").spec.source["revision"]
    snapshot = tmp_path / "cache" / "hub" / "datasets--MMVP--MMVP_VLM" / "snapshots" / revision
    mmvp(snapshot)
    assert missing("mmvp_vlm", tmp_path) == [{}]
    assert load("mmvp_vlm", tmp_path, 2).source["revision"] == revision
    (snapshot / "MLLM_VLM Images" / "Color" / "2.jpg").unlink()
    (why,) = missing("mmvp_vlm", tmp_path)[0].values()
    assert why == "incomplete: image Color/2.jpg is not in the cache"


# --- Winoground and ColorSwap --------------------------------------------------------------------------------


def pairs(kind: str, split: str, groups: int = 2):
    import datasets

    first = 1 if kind == "colorswap" else 0
    text, image = datasets.Value("string"), datasets.Image()
    columns: dict = {"id": list(range(groups))}
    features: dict = {"id": datasets.Value("int32")}
    for side in (first, first + 1):
        columns[f"image_{side}"] = [Image.new("RGB", (8 + side, 8)) for _ in range(groups)]
        columns[f"caption_{side}"] = [f"{split} {side} {row}" for row in range(groups)]
        features |= {f"image_{side}": image, f"caption_{side}": text}
    more = (
        ["image_source", "caption_source"]
        if kind == "colorswap"
        else ["tag", "secondary_tag", "collapsed_tag", "num_main_preds"]
    )
    for name in more:
        columns[name], features[name] = ["x"] * groups, text
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.mark.parametrize(
    ("task", "folder"), [("winoground", "facebook_winoground"), ("colorswap", "stanfordnlp_colorswap")]
)
def test_datasets_that_the_authors_code_saved(tmp_path, task, folder):
    import datasets

    saved = datasets.DatasetDict({split: pairs(task, split) for split in ("train", "test")})
    saved.save_to_disk(str(tmp_path / folder))
    loaded = load(task, tmp_path, 2)
    assert loaded.groups[0].captions[0].startswith("test ") and loaded.groups[0].images[1].open().size[1] == 8
    assert loaded.source["revision"] is None and loaded.source["folder"] == str(tmp_path / folder)
    assert missing(task, tmp_path) == [{}]
    state = json.loads((tmp_path / folder / "test" / "state.json").read_text(encoding="utf-8"))
    name = state["_data_files"][0]["filename"]
    (tmp_path / folder / "test" / name).rename(tmp_path / "elsewhere.arrow")
    with pytest.raises(OutOfReachError, match=rf"incomplete: test/{name} is missing"):
        load(task, tmp_path, 2)
    state["_data_files"][0]["filename"] = "../../elsewhere.arrow"
    write(tmp_path / folder / "test" / "state.json", state)
    with pytest.raises(DataError, match="leaves the folder"):
        load(task, tmp_path, 2)
    shutil.rmtree(tmp_path / folder / "test")
    with pytest.raises(DataError, match="has no split 'test' as save_to_disk writes it; it has train"):
        load(task, tmp_path, 2)


def test_a_local_folder_never_carries_the_hubs_commit(tmp_path, capsys):
    (tmp_path / "copy" / "data").mkdir(parents=True)
    pairs("winoground", "test", 400).to_parquet(tmp_path / "copy" / "data" / "test-00000-of-00001.parquet")
    words = (
        f"--model tiny-clip --tasks winoground --task_args path={tmp_path / 'copy'} --device cpu --offline --limit 3"
    )
    assert main([*words.split(), "--bootstrap_iters", "0", "-o", str(tmp_path / "x.json")]) == 0, capsys.readouterr()
    about = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["datasets"]["winoground"]
    assert about["revision"] is None and about["source"]["revision"] is None


def cached_colorswap(tmp_path: Path, shards: int) -> Path:
    """The first shard of a repository in the hub's cache."""
    repository = tmp_path / "cache" / "hub" / "datasets--stanfordnlp--colorswap"
    write(repository / "refs" / "main", SHA)
    data = repository / "snapshots" / SHA / "data"
    data.mkdir(parents=True)
    pairs("colorswap", "test").to_parquet(data / f"test-00000-of-{shards:05d}.parquet")
    return data


def test_the_commit_that_was_read_is_told_where_none_is_pinned(tmp_path):
    """ColorSwap names no commit; the hub's cache knows which one ``main`` was when it was fetched."""
    cached_colorswap(tmp_path, 1)
    loaded = load("colorswap", tmp_path, 2)
    assert loaded.source["revision"] == SHA
    assert load("colorswap", tmp_path, 2, revision=SHA).source["revision"] == SHA


def test_a_missing_shard_is_found_and_named(tmp_path):
    data = cached_colorswap(tmp_path, 2)
    (why,) = missing("colorswap", tmp_path)[0].values()
    assert why == "incomplete: data/test-00001-of-00002.parquet is not in the cache"
    with pytest.raises(OutOfReachError, match=r"is incomplete: data/test-00001-of-00002.parquet is missing; `ttmbench"):
        load("colorswap", tmp_path, 2)
    (why,) = missing("colorswap", tmp_path, path=str(data.parent))[0].values()
    assert "data/test-00001-of-00002.parquet is missing" in why
    (data / "test-00001-of-00002.parquet").symlink_to(tmp_path / "a blob that is gone")
    assert missing("colorswap", tmp_path)[0], "a link without its file is no shard"


def test_task_args_reach_the_sources_of_a_list():
    task = find("whatsup_a")
    files, mirror = task.with_source({"revision": SHA, "exif": "apply", "fix_labels": False}).spec.source["of"]
    assert mirror["revision"] == SHA and "revision" not in files and files["exif"] == mirror["exif"] == "apply"
    assert task.with_source({"fix_labels": False}).spec.source["of"] == task.spec.source["of"]
    own = task.with_source({"revision": SHA, "fix_labels": False}).spec.source
    assert own["fix_labels"] is False and "revision" not in own
    assert task.spec.source["of"][1]["revision"] is None, "the task itself stays as it is"
    assert find("winoground").with_source({"revision": SHA}).spec.source["revision"] == SHA


# --- which files hold a split --------------------------------------------------------------------------------

NAMES = [
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/test-00000-of-00001-ab12.parquet",
]


def test_the_files_of_a_split_by_card_and_by_names():
    for split, names in (("test", NAMES[2:]), ("train", NAMES[:2])):
        (pattern,) = files_of_split(NAMES, {}, split, None)
        assert fnmatch.filter([*NAMES, f"data/{split}-more-00000-of-00001.parquet"], pattern) == names
    assert files_of_split(NAMES, {}, "validation", None) is None
    assert files_of_split(NAMES, {}, "test", "other") is None
    assert files_of_split([*NAMES, "other/test-00000-of-00001.parquet"], {}, "test", None) is None
    entries = [{"split": "test", "path": ["a/*", "b/*"]}, {"split": "train", "path": "c/*"}]
    card = {"configs": [{"config_name": "default", "data_files": entries}]}
    assert files_of_split([], card, "test", None) == ["a/*", "b/*"]
    assert files_of_split(NAMES, card, "validation", None) is None, (
        "a card that does not tell is not overruled by names"
    )
    two = {"configs": [{"config_name": "x", "data_files": entries}, {"config_name": "y", "data_files": "d/*"}]}
    assert files_of_split([], two, "train", "x") == ["c/*"]
    assert files_of_split([], two, "train", None) is None and files_of_split([], two, "train", "y") is None
    for strange in ([None], [{"data_files": [3]}], [{"data_files": [{"split": "test", "path": [4]}]}]):
        assert files_of_split(NAMES, {"configs": strange}, "test", None) is None


def test_shards_that_are_missing():
    assert missing_shards(NAMES) == []
    assert missing_shards(NAMES[1:]) == NAMES[:1] and missing_shards(NAMES[1:], "test") == []
    assert missing_shards(["x.parquet"]) == []


# --- tags, globs and lists of tasks --------------------------------------------------------------------------


def test_validate_and_doctor_take_what_run_takes(capsys, tmp_path):
    assert main(["validate", "shapes_*", "--schema_only"]) == 0
    out = capsys.readouterr().out
    assert [line.partition(":")[0] for line in out.splitlines()] == [
        "shapes_color",
        *("shapes_color_global", "shapes_naming", "shapes_place", "shapes_replace", "shapes_retrieval"),
        "shapes_spatial",
    ]
    assert main(["validate", "shapes_place,whatsup", "shapes_place", "--schema_only"]) == 0
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names[0] == "shapes_place" and len(names) == 11 and all(name.startswith("whatsup_") for name in names[1:])
    assert main(["doctor", "--tasks", "builtin,shapes_p*"]) == 0
    assert len(re.findall(r"(?m)^task +shapes_", capsys.readouterr().out)) == 5
    assert main(["download", "builtin,shapes_place", "--dry_run", "--data_dir", str(tmp_path)]) == 0
    for words in (["validate", "nothing_*"], ["doctor", "--tasks", "nothing_*"], ["download", "nothing_*"]):
        assert main(words) == 2
        captured = capsys.readouterr()
        assert "unknown task 'nothing_*'; known:" in captured.out + captured.err, words


def test_a_wrong_file_among_several_does_not_keep_validate_from_the_others(capsys, tmp_path):
    (tmp_path / "bad.yaml").write_text("task: bad\n", encoding="utf-8")
    assert main(["validate", f"{tmp_path / 'bad.yaml'},shapes_place", "--schema_only"]) == 2
    assert "shapes_place: ok" in capsys.readouterr().out


def test_links_below_also_stay_in_the_data_folder(tmp_path):
    also = {"also": {"coco": ["../other"]}}
    path = task_data.rewritten(tmp_path, "sugarcrepe_swap_att", lambda spec: spec["source"]["of"][0].update(also))
    assert main(["validate", str(path), "--schema_only"]) == 2
