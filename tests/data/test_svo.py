"""SVO-Probes: a caption and two images that lie all over the web, many of which are gone."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import defaultdict
from itertools import count
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.task_data import load, rewritten, write

from ttmbench.cli import main
from ttmbench.data import fetch as module
from ttmbench.errors import AssertionNotMet, DataError
from ttmbench.results.document import ResultsDocument

COLUMNS = ["sentence", "pos_triplet", "neg_triplet", "pos_url", "neg_url", "pos_image_id", "neg_image_id"]
KINDS = ["subj_neg", "verb_neg", "obj_neg"]
ROWS = 12  # of the copy; row n has the images 2n and 2n + 1


def picture(number: int) -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (16, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, ["JPEG", "PNG", "GIF"][number % 3])
    return content.getvalue()


def table(address, rows: int = ROWS) -> str:
    """The release's own columns, booleans as pandas writes them; ``address`` gives that of an image."""
    text = io.StringIO(newline="")
    out = csv.writer(text)
    out.writerow([*COLUMNS, *KINDS])
    for n in range(rows):
        words = [f"A girl, {n}, stands in grass.", "girl,stand,grass", "dog,stand,grass"]
        images = [address(2 * n), address(2 * n + 1), 2 * n, 2 * n + 1]
        out.writerow([*words, *images, *(str(n % 3 == kind) for kind in range(3))])
    return text.getvalue()


def local(tmp_path: Path, site) -> Path:
    """The task as it ships, its file of rows from the test's own server."""
    rows = {"svo_probes/svo_probes.csv": f"{site.url}/svo_probes.csv"}
    return rewritten(tmp_path, "svo_probes", lambda spec: spec["source"]["get"].update(rows), "svo_probes")


def copy(data: Path) -> Path:
    """A folder of the user's own: rows 0 to 8 are whole, row 9 lacks one image, rows 10 and 11 both."""
    for number in range(19):
        write(data / "svo_probes" / "images" / f"{number}.jpg", picture(number))
    write(data / "svo_probes" / "svo_probes.csv", table(lambda n: f"https://example.org/{n}.jpg"))
    return data


@pytest.fixture
def web(monkeypatch):
    """Nobody waits, and each part of a body that a thread reads takes a second."""
    ticks = defaultdict(count)
    monkeypatch.setattr(module, "SECONDS", 20.0)
    clock = SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(ticks[get_ident()]))
    monkeypatch.setattr(module, "time", clock)


@pytest.fixture
def release(site) -> dict[int, str]:
    """The copy on a server, and what becomes of some of its images."""
    wrong = {3: "ftp://example.org/3.jpg", 5: "file:///etc/hostname", 7: "http://127.0.0.1:9/7.jpg", 9: "no address"}
    for number in range(2 * ROWS):
        site.put(f"/images/{number} a.jpg", picture(number), kind="image/jpeg")
    site.put("/images/11 a.jpg", b"", first=[(302, {"Location": "file:///etc/passwd"}, b"")] * 9)
    site.put("/images/13 a.jpg", b"<html>gone</html>", kind="text/html")
    site.put("/images/15 a.jpg", b"<html>gone</html>", kind="image/jpeg")
    site.put("/images/17 a.jpg", picture(17)[:200], kind="image/jpeg")
    site.put("/images/19 a.jpg", picture(19), kind="image/jpeg", pause=0.06)
    del site.pages["/images/21 a.jpg"]
    site.pages |= {path.replace(" ", "%20"): page for path, page in site.pages.items()}
    site.put("/svo_probes.csv", table(lambda n: wrong.get(n, f"{site.url}/images/{n} a.jpg")).encode(), kind="text/csv")
    return wrong


def test_what_can_still_be_had_is_fetched_and_the_rest_is_written_down(site, release, web, tmp_path, capsys):
    path, data = local(tmp_path, site), tmp_path / "data"
    fetch = ["download", str(path), "--data_dir", str(data)]
    assert main(fetch) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert "14 images" in said and "10 could not be fetched: see images.lost.jsonl" in said and "2 of 12 groups" in said
    lost = [json.loads(line) for line in (data / "svo_probes/images.lost.jsonl").read_text().splitlines()]
    why = {int(one["image"].removesuffix(".jpg")): one["why"] for one in lost}
    expected = dict.fromkeys((3, 5, 9), "not an http or https address") | {7: "cannot be reached", 11: "is not allowed"}
    expected |= {13: "not an image of a known format", 15: "not an image of a known format", 17: "no image"}
    expected |= {19: "too slow", 21: "answers 404"}
    assert set(why) == set(expected)
    for number, words in expected.items():
        assert words in why[number], why[number]
    assert sorted(int(one.stem) for one in (data / "svo_probes/images").iterdir()) == sorted(set(range(24)) - set(why))

    before = len(site.log)
    assert main(fetch) == 0 and len(site.log) == before, "dead links are not asked again"
    site.put("/images/21%20a.jpg", picture(21), kind="image/jpeg")
    (data / "svo_probes/images.lost.jsonl").write_text("")
    assert main(fetch) == 0
    assert "1 images" in (said := capsys.readouterr().out) and "3 of 12 groups" in said
    assert site.asked("/images/0%20a.jpg") == 1, "what is there is not fetched again"
    assert main(["validate", str(path), "--data_dir", str(data), "--offline"]) == 0
    assert "3 of 12 groups (skipped because of missing images: 9), all images decode" in capsys.readouterr().out


def test_a_network_that_is_down_is_no_dead_link(site, web, tmp_path, capsys):
    site.put("/svo_probes.csv", table(lambda n: f"http://127.0.0.1:9/{n}.jpg", module.SILENT).encode())
    path, data = local(tmp_path, site), tmp_path / "data"
    assert main(["download", str(path), "--data_dir", str(data)]) == 4
    assert "20 of 40 images could not be fetched, and no server answered: " in capsys.readouterr().out
    assert not (data / "svo_probes/images.lost.jsonl").read_bytes()


def test_an_interrupted_download_goes_on(site, web, tmp_path, monkeypatch, capsys):
    for number in range(2 * ROWS):
        site.put(f"/{number}.jpg", picture(number), kind="image/jpeg")
    site.put("/svo_probes.csv", table(lambda n: f"{site.url}/{n}.jpg").encode())
    path, data = local(tmp_path, site), tmp_path / "data"
    real, seen = module.as_rgb, []

    def look(image):
        assert (data / "svo_probes/images.lost.jsonl").is_file(), "else a killed download is taken for whole"
        seen.append(image)
        if len(seen) == 5:
            raise KeyboardInterrupt
        return real(image)

    monkeypatch.setattr(module, "as_rgb", look)
    assert main(["download", str(path), "--data_dir", str(data)]) == 130
    there = {one.name for one in (data / "svo_probes/images").iterdir()}
    assert 4 <= len(there) < 2 * ROWS and not any(".part" in one for one in there)
    monkeypatch.setattr(module, "as_rgb", real)
    assert main(["download", str(path), "--data_dir", str(data)]) == 0, capsys.readouterr()
    assert "12 of 12 groups" in capsys.readouterr().out, (data / "svo_probes/images.lost.jsonl").read_text()
    assert all(site.asked(f"/{name}") == 1 for name in there)


def test_a_folder_of_the_users_own_is_taken_as_it_is(tmp_path, capsys):
    own = copy(tmp_path / "data")
    assert main(["download", "svo_probes", "--data_dir", str(own)]) == 0
    assert "present" in (said := capsys.readouterr().out) and "9 of 12 groups" in said
    loaded = load("svo_probes", own)
    assert loaded.source["coverage"] == {"rows": 12, "here": 9, "missing": ["9", "10", "11"]}
    assert loaded.groups[1].captions == ("A girl, 1, stands in grass.",)
    assert [one.name for one in loaded.groups[1].images] == ["2.jpg", "3.jpg"]
    assert [group.tags["kind"] for group in loaded.groups[:3]] == ["subject", "verb", "object"]
    verb = load("svo_probes_verb_neg", own, limit=2)
    assert [group.group_id for group in verb.groups] == ["1", "4"] and verb.source["coverage"]["missing"] == ["10"]
    shutil.rmtree(own / "svo_probes" / "images")
    (own / "svo_probes" / "images").mkdir()
    with pytest.raises(DataError, match="none of 12 groups has its images"):
        load("svo_probes", own)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run with adaptation of the copy, by the public command."""
    tmp_path = tmp_path_factory.mktemp("svo")
    data = copy(tmp_path / "data")
    words = ["--model", "tiny-clip", "--tasks", "svo_probes", "--data_dir", str(data), "--log_samples"]
    words += ["--methods", "ttm", "--audit_labels", "--ttm_args", "iterations=1,epochs=1,tau_start=0,lr=1e-4"]
    words += ["--output_path", str(tmp_path / "out")]
    assert main([*words, "--bootstrap_iters", "0", "--device", "cpu"]) == 0
    return tmp_path


def test_a_run_says_what_its_numbers_are_of(ran, capsys):
    document = json.loads(next((ran / "out").rglob("results*.json")).read_text())
    about = document["datasets"]["svo_probes"]
    assert about["coverage"] == {"rows": 12, "here": 9, "missing": ["9", "10", "11"]} and about["shape"] == [2, 1]
    assert "coverage" not in about["source"]
    assert document["n-samples"]["svo_probes"] == {"original": 12, "effective": 9, "clusters": 9}
    assert any("9 of 12 groups are here" in note for note in document["notes"]["svo_probes"])
    numbers = document["results"]["svo_probes"]
    assert numbers["image_score,none"] == numbers["group_match,none"] == numbers["group_score,none"]
    assert not any("text_score" in key for key in numbers)
    assert document["chance"]["svo_probes"]["image_score"] == 0.5
    assert document["methods"]["svo_probes"]["ttm"]["audit_labels"]["passed"] is True
    found = next(one for one in ResultsDocument.model_validate(document).numbers if one.key == "image_score,none")
    assert found.extent.words == "9 of 12" and not found.limited


def test_coverage_can_be_asserted(ran):
    base = ["--model", "tiny-clip", "--tasks", "svo_probes", "--data_dir", str(ran / "data"), "--bootstrap_iters", "0"]
    assert main([*base, "--assert", "svo_probes.coverage>=0.75"]) == 0
    assert main([*base, "--assert", "svo_probes.coverage>0.75"]) == AssertionNotMet.exit_code
    assert main([*base, "--limit", "4", "--assert", "svo_probes.coverage==0.75"]) == 0
