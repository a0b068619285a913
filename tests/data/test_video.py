"""Videos as items of groups: which frames are read, from which files, and what is said of files that cannot be."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.task_data import find, load, rewritten, task_file, write

import ttmbench
from ttmbench._util.images import frames_of
from ttmbench.cli import main
from ttmbench.data.loader import data_locations
from ttmbench.data.sources.rendered import FRAMES, UNIT, Look, make_clips, render
from ttmbench.data.sources.rendered import SIZE as SIDE
from ttmbench.data.video import Video, sampled
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.inputs import open_upright
from ttmbench.types import Group

SIZE, TOTAL = 32, 12  # of the videos here, in which frame n is grey of level 7 n
END = SIDE * UNIT  # right edge of a drawn frame
GROUP = {"shape": [2, 2], "id": "id", "images": ["first", "second"], "captions": ["one", "other"]}


def frame(number: int) -> Image.Image:
    return Image.new("RGB", (SIZE, SIZE), (min(255, 7 * number),) * 3)


def video_file(path: Path, total: int = TOTAL) -> Path:
    """A video by its ending, without loss where the format can."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [frame(number) for number in range(total)]
    av = pytest.importorskip("av")
    codec = "libvpx-vp9" if path.suffix == ".webm" else "mpeg4"
    with av.open(str(path), "w", options={"movflags": "faststart"} if path.suffix == ".mp4" else {}) as container:
        stream = container.add_stream(codec, rate=10)
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return path


def task_of(folder: Path, name: str, **video: object) -> Path:
    """A task of one group: two files, the second with the frames of the first and one more."""
    video_file(folder / "videos" / f"a{name}")
    video_file(folder / "videos" / f"b{name}", TOTAL + 1)
    row = {"id": "g", "first": f"a{name}", "second": f"b{name}", "one": "it gets light", "other": "it gets dark"}
    write(folder / "groups.jsonl", row)
    source = {"kind": "folder", "path": "groups.jsonl", "images": "videos", "video": video}
    return task_file(folder, source, GROUP)


def levels(group: Group, item: int = 0) -> list[int]:
    """Which frames were read."""
    opened = open_upright(group.images[item], group.group_id)
    assert all(image.size == (SIZE, SIZE) for image in frames_of(opened))
    return [round(float(np.asarray(image).mean()) / 7) for image in frames_of(opened)]


@pytest.mark.parametrize("ending", [".mp4", ".webm", ".avi"])
def test_the_sampled_frames_of_a_file_are_read(tmp_path, ending):
    loaded = load(task_of(tmp_path, ending, frames=4, rule="linspace"))
    assert levels(loaded.groups[0]) == sampled(TOTAL, 4, "linspace") == [0, 3, 7, 11]
    assert levels(loaded.groups[0], 1) == [0, 4, 8, 12]
    assert loaded.source["video"] == {"frames": 4, "rule": "linspace", "pooling": "after_normalization"}


def test_rules_are_those_of_published_code():
    """LLaVA-OneVision's np.linspace(dtype=int), and every (n // N)-th frame, the first N, of Vinoground's VideoCLIP."""
    for total in range(1, 90):
        for frames in range(1, min(total, 33) + 1):
            assert sampled(total, frames, "linspace") == np.linspace(0, total - 1, frames, dtype=int).tolist()
            strided = [*range(0, total, max(1, total // frames))][:frames]
            assert sampled(total, frames, "stride") == strided and len(strided) == frames
            assert sampled(total, frames, "middles") == [int((part + 0.5) * total / frames) for part in range(frames)]


def test_task_args_change_how_videos_are_read(tmp_path):
    task = find(task_of(tmp_path, ".mp4", frames=4)).with_source({"video.frames": 2, "video.rule": "stride"})
    assert task.spec.video == Video(frames=2, rule="stride")
    assert task.with_source({}).spec.source["video"]["pooling"] == "after_normalization"
    for other, changes, message in (
        (task, {"video.rule": "all"}, "'rule': must be 'linspace', 'middles' or 'stride'"),
        (task, {"video.frame": 3}, "unknown key 'frame'; did you mean 'frames'"),
        (find("shapes_color"), {"video.frames": 3}, "task 'shapes_color' has no videos"),
    ):
        with pytest.raises(UsageError, match=message):
            other.with_source(changes)


def test_files_that_are_short_or_damaged_are_one_line(tmp_path):
    group = load(task_of(tmp_path, ".mp4", frames=13)).groups[0]
    with pytest.raises(TtmbenchError, match=r"image a\.mp4 of group g cannot be read: it has 12 frames, fewer than "):
        levels(group)
    assert len(levels(group, 1)) == 13
    path = tmp_path / "videos" / "b.mp4"
    for content in (path.read_bytes()[: path.stat().st_size // 2], b"no video", b""):
        path.write_bytes(content)
        with pytest.raises(TtmbenchError, match=r"image b\.mp4 of group g cannot be read: \w[^\n]+$"):
            levels(group, 1)


def test_files_that_no_reader_takes_are_named_when_the_task_is_read(tmp_path, monkeypatch):
    task = task_of(tmp_path, ".mp4")
    (tmp_path / "videos" / "a.gif").write_bytes(b"")
    rows = (tmp_path / "groups.jsonl").read_text(encoding="utf-8")
    write(tmp_path / "groups.jsonl", rows.replace("a.mp4", "a.gif"))
    with pytest.raises(DataError, match=r"a.gif is not a video: its name must end in one of .avi, .m4v, "):
        load(task)
    write(tmp_path / "groups.jsonl", rows)

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("ttmbench.data.video.version", missing)
    with pytest.raises(UsageError, match=r"reading a.mp4 needs the package av; pip install 'ttmbench\[video\]'"):
        load(task)
    source = {"kind": "annotations", "file": "groups.jsonl", "images": "videos", "video": {}}
    (place,), _ = data_locations(build_registry(), find(task_file(tmp_path, source, GROUP)), tmp_path)
    assert not place.missing(), "whether videos are there needs no av"


def test_clips_of_a_group_are_each_other_backwards_and_have_pinned_bytes():
    groups = make_clips(40, 1000)
    for group in groups:
        first, second = group.scenes
        assert len(first) == FRAMES and [scene.things for scene in first] == [scene.things for scene in second][::-1]
        for clip, caption in zip(group.scenes, group.captions, strict=True):
            visible = [Look(thing.color, thing.shape) for scene in clip for thing in scene.things if 0 < thing.x < END]
            one, other = dict.fromkeys(visible)
            assert caption == f"{one} enters before {other}"
    drawn = [render(scene).tobytes() for group in groups[:2] for clip in group.scenes for scene in clip[::5]]
    digest = "345d379436ebc60680df39f834bc133dfa747b9e49e5f0dbb957c38cb946f64f"
    assert hashlib.sha256(b"".join(drawn)).hexdigest() == digest


def test_vinoground_is_fetched_and_scored(site, tmp_path, capsys):
    """Rows without an id: the n-th row has the videos n_pos.mp4 and n_neg.mp4."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for number in range(2):
            for side, total in (("pos", 34 + number), ("neg", 32)):
                name = f"{number}_{side}.mp4"
                packed.write(video_file(tmp_path / name, total), f"vinoground_videos/{name}")
    rows = (
        "index,major,minor,pos_cap,neg_cap\n7,action,interaction;cyclical,a man sits and stands,a man stands and sits\n"
    )
    rows += '9,object,,"the dog, then the cat, enters","the cat, then the dog, enters"\n'
    address = "/datasets/HanSolo9682/Vinoground/resolve/main"
    site.put(f"{address}/vinoground.csv", rows.encode())
    site.put(f"{address}/vinoground_videos.zip", archive.getvalue())

    def from_here(spec: dict) -> None:
        spec["group"]["n_groups"] = 2
        for origin in spec["source"]["get"].values():
            origin["url"] = origin["url"].replace("https://huggingface.co", site.url)

    path, data = rewritten(tmp_path, "vinoground", from_here), str(tmp_path / "data")
    assert main(["download", str(path), "--data_dir", data]) == 0
    assert main(["validate", str(path), "--data_dir", data, "--offline"]) == 0
    said = capsys.readouterr().out
    assert "2 groups, all videos decode" in said and "(32x32, 32x32 px, 32 frames each)" in said
    group = load(path, Path(data)).groups[0]
    assert (group.group_id, [image.name for image in group.images]) == ("0", ["0_pos.mp4", "0_neg.mp4"])
    assert group.tags == {"major": "action", "minor": "interaction;cyclical"}
    assert levels(group)[:3] == [0, 1, 2] and levels(group)[-1] == 33
    options = ["--data_dir", data, "--offline", "--device", "cpu", "--task_args", "video.frames=2,video.rule=middles"]
    assert main(["--model", "tiny-clip", "--tasks", str(path), "--bootstrap_iters", "0", *options]) == 0
    assert "group_score" in capsys.readouterr().out


def test_a_list_of_images_in_memory_is_a_video(tmp_path):
    """Images, arrays and paths of frames that were extracted before, in their order."""
    frame(3).save(path := tmp_path / "3.png")
    first, second = [frame(1), np.asarray(frame(2)), path], (frame(2), frame(1), frame(3))
    clips = ttmbench.Task.from_groups([[first, second]], [["a b", "b a"]], name="clips", pooling="before_normalization")
    assert [levels(clips.groups[0], item) for item in (0, 1)] == [[1, 2, 3], [2, 1, 3]]
    run = ttmbench.simple_evaluate("tiny-clip", clips, device="cpu", bootstrap_iters=0)
    source = {"kind": "memory", "video": {"frames": 3, "pooling": "before_normalization"}}
    assert run.document["datasets"]["clips"]["source"] == source
    for images, message in (
        ([[first, first[:2]]], "group 0 has a video of 2 frames, and the first item is a video of 3 frames"),
        ([[frame(1), first]], "group 0 has a video of 3 frames, and the first item is an image"),
        ([[first, [frame(1), frame(2), "none.png"]]], "frame 2 of task 'clips': image '0/1' of group 0 is not a file"),
    ):
        with pytest.raises(DataError, match=message):
            ttmbench.Task.from_groups(images, [["a b", "b a"]], name="clips")
    with pytest.raises(UsageError, match="task 'clips': pooling is for videos, and the items are images"):
        ttmbench.Task.from_groups([[frame(1), frame(2)]], [["a", "b"]], name="clips", pooling="before_normalization")
