"""Tasks of files in the data folder, in the formats of their releases: names, nesting, archives, kinds of images."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.task_data import find, load, rewritten, write

import ttmbench
from ttmbench.cli import main
from ttmbench.results.summary import weights_of
from ttmbench.scoring.inputs import open_upright

SHARED = Path(__file__).resolve().parents[3] / "shared"
LEAVES = [
    *("object_location_center", "object_location_margin", "object_location_mid"),
    *("object_size_large", "object_size_medium", "object_size_small"),
    *(f"attribute_{kind}" for kind in ("action", "color", "material", "size", "state")),
    *("relation_action", "relation_spatial"),
]


def draw(path: Path, seed: int | str, mode: str = "RGB", size: tuple[int, int] = (12, 10)) -> Path:
    """An image of noise; equal seeds are equal images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seeded = np.random.default_rng(list(hashlib.sha256(str(seed).encode()).digest()))
    pixels = seeded.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def reduced(tmp_path: Path, name: str, change=lambda spec: None, **group: object) -> Path:
    """The task's own file with other counts, as `mine.yaml`, so that a small copy of its release has the right size."""

    def other_counts(spec):
        spec["group"] = {key: value for key, value in (spec["group"] | group).items() if value is not None}
        for mean in spec.get("means", {}).values():
            mean.pop("cells", None)
        change(spec)

    return rewritten(tmp_path, name, other_counts)


def validated(path: Path | str, data: Path, capsys) -> str:
    assert main(["validate", str(path), "--data_dir", str(data), "--offline"]) == 0, capsys.readouterr().out
    return capsys.readouterr().out


# --- two images and two captions -----------------------------------------------------------------------------


def test_cola_reads_the_published_file(tmp_path, capsys):
    published = SHARED / "annotations" / "cola" / "COLA_multiobjects_matching_benchmark.json"
    if not published.is_file():
        pytest.skip("the published annotations are not at hand")
    (tmp_path / "cola" / "images").mkdir(parents=True)
    (tmp_path / "cola" / published.name).symlink_to(published)
    rows = json.loads(published.read_text(encoding="utf-8"))
    names = {url.rpartition("/")[2] for row in rows for url in (row[0], row[2])}
    for at, name in enumerate(sorted(names)):
        draw(tmp_path / "cola" / "images" / name, at, "L" if at == 3 else "RGB")
    said = validated("cola_multiobject", tmp_path, capsys)
    assert "210 groups, all images decode" in said and "218 images" in said
    groups = load("cola_multiobject", tmp_path).groups
    assert groups[0].captions == (rows[0][1], rows[0][3]) and groups[0].images[1].name == "2388902.jpg"
    assert len({caption for group in groups for caption in group.captions}) == 294


def test_images_of_cola_are_fetched_one_by_one_and_what_is_lost_is_told(site, tmp_path, capsys):
    rows = [[f"{site.url}/vg/{2 * n}.jpg", f"one {n}", f"{site.url}/vg/{2 * n + 1}.jpg", f"two {n}"] for n in range(3)]
    for number in range(6):
        site.put(f"/vg/{number}.jpg", draw(tmp_path / "web" / f"{number}.jpg", number).read_bytes())
    site.put("/rows.json", json.dumps(rows).encode())
    get = {"cola/rows.json": f"{site.url}/rows.json", "cola/images": {"listed": True}}
    source = {"strip": f"{site.url}/vg/", "file": "cola/rows.json", "get": get}
    path = reduced(tmp_path, "cola_multiobject", lambda spec: spec["source"].update(source), n_groups=3)
    lost = site.pages.pop("/vg/4.jpg")
    fetch = ["download", str(path), "--data_dir", str(tmp_path / "data")]
    assert main(fetch) != 0
    said = capsys.readouterr().out
    assert "images: 1 of 6 images could not be fetched, first" in said and "answers 404" in said
    site.put("/vg/4.jpg", lost.body)
    before = len(site.log)
    assert main(fetch) == 0, capsys.readouterr().out
    assert len(site.log) == before + 1, "what is there is not fetched again"
    assert "1 images" in capsys.readouterr().out
    assert main(["validate", str(path), "--data_dir", str(tmp_path / "data"), "--offline"]) == 0


def naturalbench(folder: Path, count: int = 6) -> None:
    rows = []
    for n in range(count):
        draw(folder / "images" / f"{2 * n}.jpg", 2 * n, "CMYK" if n == 2 else "RGB")
        draw(folder / "images" / f"{2 * n + 1}.jpg", 2 * n + 1)
        names = {"image_0": f"{2 * n}.jpg", "image_1": f"{2 * n + 1}.jpg"}
        rows.append({"index": 10 + n, **names, "caption_0": f"A dog {n}.", "caption_1": f"A cat {n}."})
    write(folder / "metadata.json", rows)


def test_naturalbench_lies_in_the_folder_of_its_archive(tmp_path, capsys):
    naturalbench(tmp_path / "NaturalBench-Retrieval")
    path = reduced(tmp_path, "naturalbench_retrieval", n_groups=6)
    assert "6 groups, all images decode; 12 images" in validated(path, tmp_path, capsys)
    groups = load("naturalbench_retrieval", tmp_path).groups
    assert groups[0].group_id == "10" and groups[0].captions == ("A dog 0.", "A cat 0.")


EQBEN = ["eqbenag", "eqbengebc", "eqbenyoucook2", "eqbenkubric_loc", "eqbenkubric_cnt", "eqbenkubric_attr", "eqbensd"]


def eqben(images: Path, each: int) -> list[dict[str, object]]:
    """Rows of seven subsets: frames of YouCook2 as arrays with OpenCV's order of colours, captions of one in lists."""
    rows = []
    for subset in EQBEN:
        for n in range(each):
            pair = [f"{subset}/{n}/frame_{side}.png" for side in (0, 1)]
            if subset == "eqbenyoucook2":
                pair = [name.replace(".png", ".npy") for name in pair]
            for name in pair:
                shown = draw((images / name).with_suffix(".png"), name)
                if name.endswith(".npy"):
                    np.save(images / name, np.asarray(Image.open(shown))[:, :, ::-1])
            captions: list[object] = [f"{subset} {n} before", f"{subset} {n} after"]
            if subset == "eqbenag":  # a list, of which the first counts
                captions = [[one, f"{one} again"] for one in captions]
            rows.append(dict(zip(("image0", "image1", "caption0", "caption1"), (*pair, *captions), strict=True)))
    return rows


def test_eqben_mini_has_frames_of_seven_subsets(tmp_path, capsys):
    write(tmp_path / "eqben_vllm" / "all_select.json", eqben(tmp_path / "eqben_vllm" / "images", 20))
    assert "140 groups, all images decode; 280 images" in validated("eqben_mini", tmp_path, capsys)
    groups = load("eqben_mini", tmp_path).groups
    assert [sum(group.tags["subset"] == one for group in groups) for one in EQBEN] == [20] * 7
    assert groups[0].captions == ("eqbenag 0 before", "eqbenag 0 after")
    frame = groups[40].images[0]
    shown = Image.open(tmp_path / "eqben_vllm" / "images" / frame.name.replace(".npy", ".png"))
    assert open_upright(frame, "40").tobytes() == shown.tobytes(), "the red of an array in BGR is red"


@pytest.mark.parametrize("nested", [False, True])
def test_eqben_averages_five_subsets_of_which_one_is_an_average(tmp_path, nested):
    data = tmp_path / "data"
    rows = eqben(data / "eqben" / "images", 2)
    by_video = {"ag": {"v1": {"person": rows[:2]}}, "others": {"v2": rows[2:6]}, "flat": rows[6:]}
    write(data / "eqben" / "private_info_global.json", by_video if nested else rows)
    groups = load(reduced(tmp_path, "eqben", n_groups=len(rows)), data).groups
    five = find("eqben").spec.means["five"]
    assert five.problem(groups) is None
    weights = weights_of(five.members(groups), len(groups))
    for group, weight in zip(groups, weights, strict=True):
        assert weight == pytest.approx(1 / 5 / (3 if "kubric" in group.tags["subset"] else 1) / 2), group.tags


@pytest.mark.parametrize("subset", EQBEN)
def test_a_subset_of_eqben_needs_its_own_images_alone(tmp_path, subset):
    data = tmp_path / "data"
    write(data / "eqben" / "private_info_global.json", eqben(data / "eqben" / "images", 2))
    for other in set(EQBEN) - {subset}:
        shutil.rmtree(data / "eqben" / "images" / other)
    task = find(reduced(tmp_path, subset, n_groups=2))
    groups = load(task, data).groups
    assert [group.tags for group in groups] == [{"subset": subset}] * 2
    assert all(image.name.startswith(f"{subset}/") for group in groups for image in group.images)
    assert task.spec.aggregate == find("eqben").spec.parts


# --- one image -----------------------------------------------------------------------------------------------


def aro(data: Path, name: str, count: int, **cells) -> None:
    rows = []
    for n in range(count):
        image = draw(data / "aro" / "images" / f"{n % 4}.jpg", n % 4, "L" if n % 4 == 1 else "RGB")
        box = {"bbox_x": n % 3, "bbox_y": 2, "bbox_w": 5, "bbox_h": 4 + n // 8}
        texts = {"true_caption": f"the cat is near the dog {n}", "false_caption": f"the dog is near the cat {n}"}
        more = {key: value(n) for key, value in cells.items()}
        rows.append({"image_id": n % 4, "image_path": image.name, **box, **texts, **more})
    write(data / "aro" / f"visual_genome_{name}.json", rows)


def test_aro_cuts_the_box_out_of_the_image(tmp_path, capsys):
    data = tmp_path / "data"
    aro(data, "relation", 12, relation_name=lambda n: ("on", "under", "near")[n % 3])
    two = {"relation_name": ["on", "under"]}
    path = reduced(tmp_path, "aro_vg_relation", lambda spec: spec["means"]["macro_48"]["only"].update(two), n_groups=12)
    assert "12 groups, all images decode" in validated(path, data, capsys)
    group = load(find(path), data).groups[1]
    whole = open_upright(group.images[0], "1")
    expected = Image.open(data / "aro" / "images" / "1.jpg").convert("RGB").crop((1, 2, 6, 6))
    assert whole.tobytes() == expected.tobytes() and group.tags == {"relation_name": "under"}
    run = ttmbench.simple_evaluate("tiny-clip", str(path), data_dir=str(data), device="cpu", bootstrap_iters=0)
    means = run["tag_means"]["mine"]
    assert (means["macro_48"]["cells"], means["macro_48"]["groups"], means["macro_all"]["groups"]) == (2, 8, 12)
    assert run["n-samples"]["mine"]["clusters"] == 4, "parts of one image are not independent answers"


def test_aro_names_pairs_of_attributes(tmp_path):
    data = tmp_path / "data"
    aro(data, "attribution", 6, attributes=lambda n: ["white", "brown"] if n < 4 else ["brown", "white"])
    task = find(reduced(tmp_path, "aro_vg_attribution", n_groups=6))
    task = task.__class__(task.spec.model_copy(update={"means": {}}), task.folder)
    groups = load(task, data).groups
    assert [group.tags["attributes"] for group in groups] == ["white_brown"] * 4 + ["brown_white"] * 2


def vl_checklist(data: Path, name: str, rows: int = 3) -> None:
    """Files of all parts: three captions of each kind in SWiG's, an equal pair in one, images of three collections."""
    for label, one in find(name).spec.source["files"].items():
        source = one["cells"]["source"]
        made = []
        for n in range(rows):
            folder, image = {
                "vg": ("visual_genome", f"VG_100K/{n}.jpg"),
                "vaw": ("visual_genome", f"VG_100K_2/{n + 9}.jpg"),
                "swig": ("swig", f"milking_{n}.jpg"),
                "hake": ("hake", f"hico_20160224_det/{n}.jpg"),
            }[source]
            draw(data / folder / image, image, "L" if n == 1 else "RGB")
            times = 3 if source == "swig" else 1
            texts = {"POS": [f"{label} {n}"] * times, "NEG": [f"no {label} {n}"] * times}
            made.append([image, {**texts, "NEG": texts["POS"]} if label == "vg_spatial" and n == 0 else texts])
        write(data / one["file"], made)
    for folder in ("VG_100K", "VG_100K_2"):
        (data / "visual_genome" / folder).mkdir(parents=True, exist_ok=True)


def test_vl_checklist_takes_the_first_rows_of_each_file_and_averages_twice(tmp_path, capsys):
    data = tmp_path / "data"
    vl_checklist(data, "vl_checklist")
    path = reduced(tmp_path, "vl_checklist", n_groups=112, first_rows=2)
    said = validated(path, data, capsys)
    assert "112 groups, all images decode" in said and "1 groups have a caption twice, as is known" in said
    groups = load(path, data).groups
    (group,) = [one for one in groups if one.group_id == "swig_tool_small/1"]
    assert group.captions == ("swig_tool_small 1", "no swig_tool_small 1")
    expected = {"part": "object", "kind": "size small", "source": "swig", "file": "swig_tool_small"}
    assert group.tags == expected
    spec = find("vl_checklist").spec
    cells = {name: len(mean.members(groups)) for name, mean in spec.means.items()}
    leaves = {name: cells.pop(name) for name in list(cells) if "_" in name}
    assert cells == {"object": 42, "attribute": 10, "relation": 4, "overall": 56}
    assert set(leaves) == set(LEAVES) and sum(leaves.values()) == 56
    assert all(mean.problem(groups) is None for mean in spec.means.values())
    weights = weights_of(spec.means["object"].members(groups), len(groups))
    for one, weight in zip(groups, weights, strict=True):
        files = {"vg": 2, "swig": 4, "hake": 1}.get(one.tags["source"], 0)
        assert weight == pytest.approx(1 / 6 / 3 / files / 2 if one.tags["part"] == "object" else 0), one.tags


def test_a_kind_of_vl_checklist_is_a_task_with_the_groups_and_the_mean_of_the_whole(tmp_path):
    data = tmp_path / "data"
    vl_checklist(data, "vl_checklist")
    whole_task = find(reduced(tmp_path, "vl_checklist", n_groups=112, first_rows=2))
    whole = load(whole_task, data).groups
    assert sum(find(f"vl_checklist_{leaf}").spec.group.n_groups for leaf in LEAVES) == 46797
    seen = 0
    for leaf in LEAVES:
        spec = find(f"vl_checklist_{leaf}").spec
        cells = spec.group.constant_tags
        mine = [group for group in whole if {name: group.tags[name] for name in cells} == cells]
        groups = load(find(reduced(tmp_path, f"vl_checklist_{leaf}", n_groups=len(mine), first_rows=2)), data).groups
        for one, other in zip(groups, mine, strict=True):
            assert (one.group_id, one.captions, one.tags) == (other.group_id, other.captions, other.tags)
        of_whole = weights_of(whole_task.spec.means[leaf].members(whole), len(whole))
        own = weights_of(spec.means["over_sources"].members(groups), len(groups))
        assert own.tolist() == [weight for weight in of_whole if weight] and spec.aggregate == whole_task.spec.parts
        seen += len(groups)
    assert seen == len(whole)


def crepe(data: Path, kind: str, rows: int = 2) -> None:
    for complexity in range(4, 13):
        path = data / "crepe" / "prod_hard_negatives" / kind / f"prod_vg_hard_negs_{kind}_complexity_{complexity}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["image_id", "x", "y", "width", "height", "caption", "hard_negs"])
            for n in range(rows):
                draw(data / "visual_genome" / ("VG_100K", "VG_100K_2")[n] / f"{100 + n}.jpg", n)
                hard = [f"it's not {complexity}, {n} {other}" for other in range(5)]
                table.writerow([100 + n, 8, -1 if n else 0, 6, 4, f"Caption {complexity} {n}", str(hard)])


@pytest.mark.parametrize("kind", ["atom", "swap", "negate"])
def test_crepe_reads_lists_in_tables_and_pads_with_black(tmp_path, kind, capsys):
    data = tmp_path / "data"
    crepe(data, kind)
    path = reduced(tmp_path, f"crepe_{kind}", n_groups=18)
    assert "18 groups, all images decode" in validated(path, data, capsys)
    groups = load(path, data).groups
    first, second = groups[0], groups[1]
    assert first.captions[:2] == ("Caption 4 0", "it's not 4, 0 0") and len(first.captions) == 6
    assert first.group_id == "complexity_4/0" and second.tags == {"complexity": "4"}
    pixels = np.asarray(open_upright(second.images[0], "1"))
    assert pixels.shape == (4, 6, 3) and not pixels[0].any() and not pixels[:, 4:].any() and pixels[1:, :4].any()
