"""Benchmarks of 2021 to 2025 in the formats of their releases: names, keys and nesting are real, contents are ours."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support import hub_datasets
from support.task_data import changed, encoded, find, load, rewritten, run, task_file, write, zip_of

from ttmbench.errors import DataError, UsageError

SPEC = {  # subset -> images and captions of a group
    **{"existence": 2, "relative_spatial": 4, "absolute_size": 3},
    **{"relative_size": 3, "count": 9, "absolute_spatial": 9},
}


def test_rocketscience_counts_a_row_for_each_of_its_categories(tmp_path):
    hub_datasets.rocketscience(tmp_path)
    (commit,) = (tmp_path / "datasets" / "nilshoehing" / "rocketsciencebench").glob("*/data")
    groups = load(changed("rocketscience", {"path": str(commit.parent)})).groups
    assert len(groups) == 241 and groups[0].captions == hub_datasets.words(0)
    kinds = [group.tags["Category"] for group in groups]
    assert kinds.count("Horizontal Position") == 60 and kinds[60] == "Order, Absolute Position"


def spec_archive(groups: int = 2) -> bytes:
    """data.zip: for each subset the queries of either direction, and their images in folders."""
    files: dict[str, bytes] = {}
    for at, (subset, size) in enumerate(SPEC.items()):
        of_images, of_texts = [], []
        for group in range(groups):
            images = [f"images/{group}_{option}.jpg" for option in range(size)]
            texts = [f"{subset} {group}: option {option}" for option in range(size)]
            for option in range(size):
                of_images.append({"query": images[option], "keys": texts, "label": option})
                of_texts.append({"query": texts[option], "keys": images, "label": option})
                files[f"data/{subset}/{images[option]}"] = encoded((40 * at, 100 * group, 25 * option), form="JPEG")
        files[f"data/{subset}/image2text.json"] = json.dumps(of_images).encode()
        files[f"data/{subset}/text2image.json"] = json.dumps(of_texts).encode()
    return zip_of(files)


def test_spec_is_fetched_scored_and_averaged_over_its_subsets(tmp_path, site, monkeypatch, capsys):
    archive, data, tasks = spec_archive(), tmp_path / "data", tmp_path / "tasks"
    site.put("/datasets/wjpoom/SPEC/resolve/694dfdc74fe72acdc932fd5fc919b6b0268f7a07/data.zip", archive)
    monkeypatch.setenv("HF_ENDPOINT", site.url)  # as a mirror of the Hub
    content = {"bytes": len(archive), "sha256": hashlib.sha256(archive).hexdigest()}

    def small(spec):
        spec["group"]["n_groups"], spec["aggregate"] = 2, "small" if spec["group"]["shape"] != [9, 9] else None
        origin = spec["source"]["get"]["spec/data"]
        assert origin["bytes"] == 1555390680 and origin["unpack"]
        spec["source"]["get"] = {"spec/data": origin | content}

    for subset in SPEC:
        rewritten(tasks, f"spec_{subset}", small, f"small_{subset}")
    where = ("--include_path", tasks, "--data_dir", data)
    assert run(capsys, "download", "small_*", *where)[0] == 0
    code, said, _ = run(capsys, "validate", *(f"small_{subset}" for subset in SPEC), *where, "--offline")
    assert code == 0 and said.count("2 groups, all images decode") == 6
    assert "first: 0-1 (8x6, 8x6 px) existence 0: option 0 | existence 0: option 1" in said
    result = tmp_path / "r.json"
    scored = [f"small_{subset}" for subset, size in SPEC.items() if size < 9]  # which has 362880 matchings
    asked = f"--model tiny-clip --tasks {','.join(scored)} --bootstrap_iters 0 --use_cache off --offline -o".split()
    assert run(capsys, *asked, result, *where)[0] == 0
    document = json.loads(result.read_text(encoding="utf-8"))
    for metric in ("text_accuracy,none", "image_accuracy,none"):
        single = [document["results"][task][metric] for task in scored]
        assert document["groups"]["small"][metric] == pytest.approx(sum(single) / 4)
    assert document["chance"]["small_absolute_size"]["image_accuracy"] == pytest.approx(1 / 3)


OPTIONS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("label", "change", "message"),
    [
        (3, {}, r"'label' of row 0 is 3, and there are 3 items: 0 to 2"),
        ("x", {}, "'label' of row 0 is 'x', not a number"),
        (0.5, {}, r"'label' of row 0 is 0\.5, and there are 3 items"),
        (0, {"keys": "a"}, "'keys' of row 0 must hold a list to pick from, got 'a'"),
        (1, {"keys": ["b", "a", "d"]}, r"rows 0 to 2 should be one group, .* the list of row 0 has other items"),
    ],
    ids=["beyond", "no number", "fraction", "no list", "another list"],
)
def test_what_cannot_be_picked_is_refused(tmp_path, label, change, message):
    rows = [{"keys": OPTIONS, "label": at, "query": f"the {at}th"} for at in range(3)]
    rows[0] |= {"label": label, **change}
    write(tmp_path / "rows.json", rows)
    source = {"kind": "annotations", "file": "rows.json", "rows_per_group": 3}
    pick = {"own": {"from": "keys", "by": "label"}}
    group = {"shape": [3, 3], "pick": pick, "images": ["own"], "captions": ["query"]}
    for name in OPTIONS:
        write(tmp_path / name, encoded())
    with pytest.raises(DataError, match=message):
        load(task_file(tmp_path, source, group), tmp_path)


def test_the_items_that_are_not_picked_are_foils_of_captions_and_of_images(tmp_path):
    write(tmp_path / "rows.csv", "one,two,three,at,all\na,b,c,1,\"['a', 'b', 'c']\"\na,b,c,0,\"['c', 'a', 'b']\"\n")
    for name in OPTIONS:
        write(tmp_path / name, encoded())
    source = {"kind": "annotations", "file": "rows.csv", "literals": ["all"]}
    pick = {"true": {"from": ["one", "two", "three"], "by": "at", "others": "foils"}}
    group = {"shape": [1, 3], "pick": pick, "images": ["one"], "captions": ["true", "*foils"]}
    groups = load(task_file(tmp_path, source, group), tmp_path).groups
    assert [one.captions for one in groups] == [("b", "a", "c"), ("a", "b", "c")]
    pick = {"true": {"from": "all", "by": "at", "others": "foils"}}
    group = {"shape": [3, 1], "pick": pick, "images": ["true", "*foils"], "captions": ["one"]}
    found = load(task_file(tmp_path, source, group), tmp_path).groups
    assert [[image.name for image in one.images] for one in found] == [["b", "a", "c"], ["c", "a", "b"]]
    group["images"] = ["true", "one", "*foils"]
    with pytest.raises(DataError, match="group 0 gives 4 images"):
        load(task_file(tmp_path, source, group), tmp_path)


PHOTO = {"caption_template": "a photo of {}"}


def test_a_caption_template_is_part_of_the_data(tmp_path, capsys):
    cache = ("--use_cache", tmp_path / "cache", "--bootstrap_iters", 0, "--log_samples", "-o")
    asked = ("--model", "tiny-clip", "--tasks", "shapes_color", "--limit", 4, *cache)
    documents = []
    photo = ("--task_args", "caption_template=a photo of {}")
    for number, more in enumerate(((), photo, photo)):
        assert run(capsys, *asked, tmp_path / f"{number}.json", *more)[0] == 0
        documents.append(json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8")))
    plain, photo, again = documents
    assert plain["task_hashes"] != photo["task_hashes"] == again["task_hashes"]
    assert photo["datasets"]["shapes_color"]["source"]["caption_template"] == "a photo of {}"
    assert photo["configs"]["shapes_color"]["caption_template"] == "a photo of {}"
    assert "caption_template" not in plain["datasets"]["shapes_color"]["source"]
    samples = (tmp_path / "2_samples_shapes_color.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(caption.startswith("a photo of a ") for line in samples for caption in json.loads(line)["captions"])


def test_a_caption_template_of_a_task_file_and_of_none_that_fits(tmp_path):
    source, group = {"kind": "rendered", "scene": "color"}, {"shape": [2, 2], "n_groups": 2}
    stated = task_file(tmp_path, source, group, caption_template="an image: {}!")
    captions = load(stated).groups[0].captions
    assert [caption[:9] + caption[-1] for caption in captions] == ["an image:!"] * 2
    photos = load(find(stated).with_source(PHOTO)).groups[0].captions
    assert photos == tuple("a photo of " + caption[10:-1] for caption in captions)
    for wrong in ("a photo", "{} and {}", ""):
        with pytest.raises(UsageError, match=r"should have \{\} once, where the caption goes, as in 'a photo of \{\}'"):
            find("shapes_color").with_source({"caption_template": wrong})
    with pytest.raises(UsageError, match="caption_template: only a task of kind groups or retrieval has it"):
        find("shapes_naming").with_source(PHOTO)


CHOICES = "correct_answer,caption_0,caption_1,caption_2,caption_3,correct_answer_template,image_path\n"


def test_negbench_counts_ties_both_ways_and_reads_paths_of_others(tmp_path, capsys):
    rows = [
        "0,a red circle,a blue circle,a red square,a green star,hybrid,/of/others/coco/images/val2017/{:012d}.jpg",
        "0,a red bus,a red bus,a red bus,a red bus,positive,data/coco/images/val2017/{:012d}.jpg",  # can only tie
        "2,a blue star,a red star,a green circle,a blue square,positive,data/coco/images/val2017/{:012d}.jpg",
    ]
    table = CHOICES + "".join(f"{row.format(139 + at % 2)}\n" for at, row in enumerate(rows))
    write(tmp_path / "negbench" / "images" / "COCO_val_mcq_llama3.1_rephrased.csv", table)
    for number in (139, 140):
        write(tmp_path / "coco" / "val2017" / f"{number:012d}.jpg", encoded((number, 0, 0), form="JPEG"))
    path = rewritten(tmp_path, "negbench_mcq_coco", lambda spec: spec["group"].update(n_groups=3))
    groups = load(path, tmp_path).groups
    assert [group.captions[0] for group in groups] == ["a red circle", "a red bus", "a green circle"]
    assert groups[2].captions[1:] == ("a blue star", "a red star", "a blue square")
    assert groups[0].images[0] == groups[2].images[0]
    code, said, _ = run(capsys, "validate", path, "--data_dir", tmp_path)
    assert code == 4 and "group 1 has the same caption twice, so it can only tie" in said
    out = tmp_path / "r.json"
    asked = ("--model", "tiny-clip", "--tasks", path, "--bootstrap_iters", 0, "--use_cache", "off", "-o", out)
    assert run(capsys, *asked, "--data_dir", tmp_path)[0] == 0
    strict, lenient = (
        json.loads(out.read_text(encoding="utf-8"))["results"]["mine"][f"{metric},none"]
        for metric in ("text_score", "text_score_ties_right")
    )
    assert lenient - strict == pytest.approx(1 / 3)


def test_negbench_retrieval_has_lists_of_captions_as_texts(tmp_path, capsys):
    name = "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv"
    table = "filepath,captions\n"
    for number, caption in enumerate(("a dog", 'it\'s a "cat", here')):
        image = f"{number:012d}.jpg"
        write(tmp_path / "coco" / "val2017" / image, encoded((90 * number, 0, 0), form="JPEG"))
        cell = str([f"{caption}. No bus {again}." for again in range(5)]).replace('"', '""')
        table += f'data/coco/images/val2017/{image},"{cell}"\n'
    write(tmp_path / "negbench" / "images" / name, table)
    path = rewritten(tmp_path, "negbench_retrieval_coco_negated", lambda spec: spec["group"].update(n_groups=2))
    code, said, _ = run(capsys, "validate", path, "--data_dir", tmp_path)
    assert code == 0 and "2 images with 10 captions, all images decode" in said
    code, said, _ = run(capsys, "download", "negbench", "--data_dir", tmp_path / "empty", "--dry_run")
    assert code == 0 and "1kSEq0mkV1t1T8GuOAM65iz_iAA7e5gxB" in said and f"images/{name}" in said


IMAGES = {"open-images-77_a1": [*range(10)], "MSR-VTT-video9": [3, 12, 14, 20, 31, 100, 101, 210, 990, 1000]}
CAPTIONS = {"open-images-77_a1": {"2": "A man looks down."}, "MSR-VTT-video9": {"9": "T", "5": "The ball is up."}}


@pytest.fixture
def imagecode(tmp_path) -> Path:
    """Folders of ten frames whose numbers are not their positions, and captions by position."""
    write(tmp_path / "imagecode" / "valid_data.json", CAPTIONS)
    for folder, numbers in IMAGES.items():
        for number in numbers:
            color = (number % 251, len(folder), number // 251)
            write(tmp_path / "imagecode" / "image-sets" / folder / f"img{number}.jpg", encoded(color, form="JPEG"))
    return tmp_path


def test_imagecode_is_the_nth_file_by_number_among_ten(imagecode, tmp_path, capsys):
    path = rewritten(tmp_path, "imagecode", lambda spec: spec["group"].update(n_groups=3))
    static, tail, middle = load(path, tmp_path).groups
    ids = [one.group_id for one in (static, tail, middle)]
    assert ids == ["open-images-77_a1/2", "MSR-VTT-video9/9", "MSR-VTT-video9/5"]
    assert [one.tags["kind"] for one in (static, tail, middle)] == ["static", "video", "video"]
    assert (tail.images[0].name, middle.images[0].name) == ("MSR-VTT-video9/img1000.jpg", "MSR-VTT-video9/img100.jpg")
    order = [image.name.partition("/")[2] for image in middle.images]
    assert order == [f"img{number}.jpg" for number in (100, 3, 12, 14, 20, 31, 101, 210, 990, 1000)]
    code, said, _ = run(capsys, "validate", path, "--data_dir", tmp_path)
    assert code == 0 and "10x1" in said and "3 groups, all images decode" in said and "20 images" in said
    out = tmp_path / "r.json"
    asked = ("--model", "tiny-clip", "--tasks", path, "--bootstrap_iters", 20, "--use_cache", "off", "-o", out)
    assert run(capsys, *asked, "--data_dir", tmp_path, "--log_samples")[0] == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["chance"]["mine"]["image_score"] == pytest.approx(0.1)
    assert set(document["breakdowns"]["mine"]["kind"]) == {"static", "video"}
    samples = (tmp_path / "r_samples_mine.jsonl").read_text(encoding="utf-8").splitlines()
    clusters = [json.loads(line)["cluster"] for line in samples]
    assert clusters == ["open-images-77_a1/2", "MSR-VTT-video9/9", "MSR-VTT-video9/9"], "those of a folder are one"


def test_a_listing_is_of_the_row_that_was_read(tmp_path, capsys):
    for name in ("va", "vb"):
        for frame in ("f1", "f2"):
            write(tmp_path / "frames" / name / f"{frame}.png", encoded((100 * int(frame[1]), 0, ord(name[1]))))
    write(tmp_path / "r.json", [{"v": "va", "c": "a", "d": "b"}, {"v": "vb", "c": "c", "d": "d"}])
    group = {"shape": [2, 2], "n_groups": 2, "images": ["*v", "*w"], "captions": ["c", "d"]}
    listings = {"v": "{v}/f1.png", "w": "{v}/f2.png"}
    source = {"kind": "annotations", "file": "r.json", "images": "frames", "listings": listings}
    code, said, told = run(capsys, "validate", task_file(tmp_path, source, group), "--data_dir", tmp_path)
    assert code == 0, said + told


def test_what_cannot_be_listed_is_refused(imagecode, tmp_path):
    path = rewritten(tmp_path, "imagecode", lambda spec: spec["group"].update(n_groups=3))
    write(imagecode / "imagecode" / "image-sets" / "MSR-VTT-video9" / "img7.jpg", encoded(form="JPEG"))
    with pytest.raises(DataError, match="gives 11 images"):
        load(path, tmp_path)
    for captions, message in (
        ({"gone": {"0": "a"}}, r"listing 'frames' of row 0: no file gone/img\*\.jpg in "),
        ({"..": {"0": "a"}}, "leaves the folder"),
        ({"open-images-77_a1": {"10": "a"}}, "'number' of row 0 is '10', and there are 10 items: 0 to 9"),
        ({"open-images-77_a1": "a"}, "open-images-77_a1 holds str, not an object with a key for 'number'"),
        (["a"], "it holds list, not an object with a key for 'folder'"),
    ):
        write(imagecode / "imagecode" / "valid_data.json", captions)
        with pytest.raises(DataError, match=message):
            load(path, tmp_path)


CCNEG = ("ccneg/ccneg_images/cc3m_subset_images_extracted_final", "/workspace/datasets/cc3m/subset")


def ccneg(folder: Path, rows: int = 5, **wrong: object) -> dict[str, object]:
    """ccneg_preprocessed.pt and its images; commas in captions and in negations."""
    import torch

    annotations = [
        {"json": {"caption": f"a dog, {n} cats", "url": ""}, "sop_data": {"negative-prompt": f"no dog, {n} cats, here"}}
        for n in range(rows)
    ]
    for number in range(rows):
        write(folder / CCNEG[0] / f"{number:09d}.jpg", encoded((50 * number, 0, 0), form="JPEG"))
    paths = [f"{CCNEG[1]}/{n:09d}.jpg" for n in range(rows)]
    content = {"image_paths": paths, "annotations": annotations, "num_ops": {}}
    (folder / "ccneg").mkdir(exist_ok=True)
    torch.save(content | wrong, folder / "ccneg" / "ccneg_preprocessed.pt")
    return content


def few(spec) -> None:
    """The task with five rows, of which the last three are read."""
    assert spec["group"]["where"] == {"_row": {"at_least": 228246 - 40000}}
    spec["group"] |= {"n_groups": 3, "where": {"_row": {"at_least": 2}}}


def test_ccneg_is_read_from_the_lists_of_its_authors(tmp_path, capsys):
    path, data = rewritten(tmp_path, "ccneg", few), tmp_path / "data"
    data.mkdir()
    code, said, _ = run(capsys, "download", path, "--data_dir", data)
    assert code == 4 and "ccneg_preprocessed.pt has to be downloaded manually: https://github.com/jaisidh" in said
    ccneg(data)
    assert run(capsys, "download", path, "--data_dir", data)[0] == 0
    groups = load(path, data).groups
    assert [group.group_id for group in groups] == ["2", "3", "4"]
    assert groups[0].captions == ("a dog, 2 cats", "no dog 2 cats here") and groups[0].images[0].name == "000000002.jpg"
    assert "3 groups, all images decode" in run(capsys, "validate", path, "--data_dir", data)[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"image_paths": [Path("a.jpg")]}, "it holds pathlib"),
        ({"annotations": []}, "row 0 has no column 'annotations.sop_data.negative-prompt'; it has image_paths"),
        ({"image_paths": [1] * 5}, "'image_paths' of group 2 must name an image file, got 1"),
    ],
    ids=["objects", "empty", "numbers"],
)
def test_a_pickle_of_something_else_is_refused(tmp_path, wrong, message):
    ccneg(tmp_path, **wrong)
    with pytest.raises(DataError, match=message):
        load(rewritten(tmp_path, "ccneg", few), tmp_path)
