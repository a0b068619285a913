"""Task files, the registry and plugins: what is right is read, what is wrong names its file and key."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path

import pytest
from support.task_data import find, run
from support.task_data import write as written

from ttmbench.cli import main
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import all_tasks, find_task, select_tasks
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import build_registry

TASKS = Path(__file__).resolve().parents[2] / "tasks"
GOOD = """
task: mine
version: 1
source: {kind: rendered, scene: color}
group: {shape: [2, 2], n_groups: 3}
metrics: [group_match]
"""


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    return written(folder / name, text)


def test_every_shipped_task_is_right():
    registry = build_registry()
    names = {path.stem for path in TASKS.glob("[!_]*.yaml")}
    assert names == set(all_tasks(registry)) and len(names) >= 6
    for name in names:
        spec = find_task(registry, name).spec
        assert spec.license and spec.description, name
        if spec.source["kind"] != "rendered":
            assert spec.reference.startswith("https://arxiv.org/abs/") and spec.citation.startswith("@"), name
            assert spec.images_needed and spec.evidence["groups"], name
        assert spec.group.n_groups or spec.evidence["groups"] == "unknown", f"{name}: only where nobody has counted"
        for metric in spec.metrics if spec.kind == "groups" else ():
            assert registry.metrics[metric].defined(spec.shape.images, spec.shape.captions), (name, metric)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("task: other", "write 'task: mine', or rename the file to other.yaml"),
        ("task: [mine", "column 7: task: [mine ^"),
        ("include: nothing.yaml\ntask: mine", "'include' names 'nothing.yaml'"),
        ("include: ../mine.yaml\ntask: mine", "not a file of the same folder"),
        ("include: mine.yaml\ntask: mine", "include itself"),
        ("include: 3\ntask: mine", "'include' must be a file name"),
        ("include: {file: mine.yaml, but: [x]}\ntask: mine", "'include' must be a file name"),
        ("include: {file: mine.yaml, without: ttm}\ntask: mine", "'include' must be a file name"),
        ("include: {without: [ttm]}\ntask: mine", "'include' must be a file name"),
    ],
)
def test_a_wrong_head_of_a_task_file_names_file_and_key(tmp_path, head, message):
    path = write(tmp_path, GOOD.replace("task: mine", head))
    with pytest.raises(UsageError) as caught:
        find(path)
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_task_file_is_told_every_mistake(tmp_path):
    text = GOOD.replace("mine", "other").replace("1", "one").replace("group_match", "nope, text_scor") + "colour: red"
    with pytest.raises(UsageError, match=r"'colour'.*'version'.*'task: mine'.*'nope'.*'text_scor'"):
        find(write(tmp_path, text))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"- a\n- b\n", b"hello", b"", b"{" * 5000, b"a" * 1_000_001])
def test_what_is_no_task_file_is_refused(tmp_path, content):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        find(path)
    assert "\n" not in str(caught.value)


def test_include_shares_fields_and_the_including_file_wins(tmp_path):
    write(tmp_path, GOOD)
    path = write(tmp_path, "include: mine.yaml\ntask: variant\nsource: {seed: 9}\nmatching: global\n", "variant.yaml")
    spec = find(path).spec
    assert spec.source == {"kind": "rendered", "scene": "color", "seed": 9}
    assert spec.is_global and spec.version == 1 and spec.task == "variant"


def test_include_may_leave_keys_out(tmp_path):
    write(tmp_path, GOOD + "ttm: {siglip-b16: {tau_start: 2}}\nlicense: MIT\n")
    include = "include: {file: mine.yaml, without: [ttm]}\ntask: variant\nttm: {clip-b16: {tau_start: 1}}\n"
    spec = find(write(tmp_path, include, "variant.yaml")).spec
    assert spec.ttm == {"clip-b16": {"tau_start": 1}} and spec.license == "MIT"
    path = write(tmp_path, "include: [{file: mine.yaml, without: [tmm]}]\ntask: variant\n", "variant.yaml")
    with pytest.raises(UsageError, match=r"variant\.yaml: 'include' leaves out 'tmm', which mine\.yaml does not have"):
        find(path)


def test_select_by_name_tag_glob_and_file(tmp_path):
    path = write(tmp_path, GOOD)
    registry = build_registry()
    assert list(select_tasks(registry, ["shapes_place", "shapes_color"])) == ["shapes_place", "shapes_color"]
    assert {"shapes_replace", "shapes_spatial"} <= set(select_tasks(registry, ["group_1xk"]))
    others = {"shapes_naming", "shapes_order", "shapes_retrieval"}
    assert set(select_tasks(registry, ["builtin"])) == {n for n in registry.task_files if "shapes" in n} - others
    assert {"shapes_color", "shapes_color_global"} == set(select_tasks(registry, ["shapes_color*"]))
    with pytest.raises(UsageError, match="did you mean 'shapes_color'"):
        select_tasks(registry, ["shape_color"])
    assert list(select_tasks(registry, [str(path), "shapes_color", "shapes_color"])) == ["mine", "shapes_color"]


def test_include_path_adds_tasks_and_doubled_names_are_an_error(tmp_path):
    write(tmp_path, GOOD)
    assert "mine" in all_tasks(build_registry([tmp_path]))
    write(tmp_path, GOOD.replace("mine", "shapes_color"), "shapes_color.yaml")
    with pytest.raises(UsageError, match="'shapes_color' is defined by both 'ttmbench' and"):
        build_registry([tmp_path])
    with pytest.raises(UsageError, match="is not a folder"):
        build_registry([tmp_path / "nowhere"])


def test_folder_source_reads_a_users_own_task_and_tells_where_it_comes_from(folder_task):
    folder = folder_task()
    registry = build_registry([folder])
    loaded = load_task_data(registry, find_task(registry, "mine"))
    groups = load_task_data(registry, find_task(registry, "mine")).groups
    assert [group.group_id for group in groups] == [f"g{i}" for i in range(6)] and loaded.groups == groups
    assert groups[0].images[0].name == "0_0.png" and groups[0].images[0].open().size == (30, 24)
    assert len(load_task_data(registry, find_task(registry, "mine"), limit=2).groups) == 2
    digest = hashlib.sha256((folder / "groups.jsonl").read_bytes()).hexdigest()
    source = {"kind": "folder", "path": "groups.jsonl", "images": "images", "file": "groups.jsonl", "sha256": digest}
    assert loaded.source == {**source, "exif": "apply"}


@pytest.mark.parametrize("address", ["https://me:hunter2-pw@host.org/d.jsonl", "s3://me:hunter2-pw@b/d"])
def test_a_password_in_an_address_is_refused(address, folder_task, tmp_path, capsys):
    task, out = str(folder_task(source={"kind": "folder", "path": address}) / "mine.yaml"), tmp_path / "out"
    assert main(["validate", task, "--offline"]) == 2
    assert main(["--model", "tiny-clip", "--tasks", task, "--offline", "-o", str(out)]) == 2
    printed = capsys.readouterr()
    assert "hunter2" not in printed.out + printed.err and not out.exists()


@pytest.mark.parametrize("path", ["rows.parquet", "saved", "saved/data-00000-of-00001.arrow"])
def test_tables_of_datasets_under_kind_folder_name_the_kind_that_reads_them(folder_task, capsys, path):
    import datasets

    folder = folder_task(source={"kind": "folder", "path": path, "images": "images"})
    table = datasets.Dataset.from_dict({"id": ["a"]})
    table.to_parquet(folder / "rows.parquet")
    table.save_to_disk(folder / "saved")
    capsys.readouterr()
    assert main(["validate", str(folder / "mine.yaml")]) == 4
    said = capsys.readouterr().out
    assert "rows are read from JSON lines, JSON or CSV here" in said and said.count("\n") == 1
    assert "`source: {kind: huggingface, path: ./FOLDER, split: NAME}`" in said


def test_all_wrong_keys_of_a_file_are_reported_at_once(tmp_path, capsys):
    text = "task: mine\nverson: 1\nsource: {kind: folder}\ngroup: {shape: [2], n_groups: no}\nmetrics: [group_match]\n"
    code, said, _ = run(capsys, "validate", write(tmp_path, text))
    assert code == 2 and said.count("\n") == 1
    words = ["'verson'; did you mean 'version'", "'version' is missing", "'group.shape.1'", "'group.n_groups'"]
    for number, one in enumerate(words, start=1):
        assert f"({number})" in said and one in said, said
    source = GOOD.replace("{kind: rendered, scene: color}", "{kind: folder, pth: rows.csv, imags: x}")
    code, _, said = run(capsys, "run", "--model", "tiny-clip", "--tasks", write(tmp_path, source))
    assert code == 2 and "'imags'; did you mean" in said and "key 'path' is missing" in said, said


# --- what commands take ---------------------------------------------------------------------------------------


def test_task_args_reach_the_sources_of_a_list():
    task = find("whatsup_a")
    sha = "0123456789abcdef0123456789abcdef01234567"
    files, mirror = task.with_source({"revision": sha, "exif": "apply", "fix_labels": False}).spec.source["of"]
    assert mirror["revision"] == sha and "revision" not in files and files["exif"] == mirror["exif"] == "apply"
    assert task.with_source({"fix_labels": False}).spec.source["of"] == task.spec.source["of"]
    own = task.with_source({"revision": sha, "fix_labels": False}).spec.source
    assert own["fix_labels"] is False and "revision" not in own
    assert task.spec.source["of"][1]["revision"] is None, "the task itself stays as it is"
    assert find("winoground").with_source({"revision": sha}).spec.source["revision"] == sha


def test_validate_and_doctor_take_what_run_takes(capsys, tmp_path):
    assert main(["validate", "shapes_*", "--schema_only"]) == 0
    out = capsys.readouterr().out
    kinds = ("color", "color_global", "naming", "order", "place", "replace", "retrieval", "spatial")
    assert [line.partition(":")[0] for line in out.splitlines()] == [f"shapes_{kind}" for kind in kinds]
    assert main(["validate", "shapes_place,whatsup", "shapes_place", "--schema_only"]) == 0
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names[0] == "shapes_place" and len(names) == 11 and all(name.startswith("whatsup_") for name in names[1:])
    assert main(["doctor", "--tasks", "builtin,shapes_p*"]) == 0
    assert len(re.findall(r"(?m)^task +shapes_", capsys.readouterr().out)) == 5
    assert main(["download", "builtin,shapes_place", "--dry_run", "--data_dir", str(tmp_path)]) == 0
    for words in (["validate", "nothing_*"], ["doctor", "--tasks", "nothing_*"], ["download", "nothing_*"]):
        assert main(words) == 2
        captured = capsys.readouterr()
        assert "unknown task 'nothing_*'; " in captured.out + captured.err, words


# --- ttmbench new task -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "where"), [("my_colors", None), ("123", "deep/a folder"), ("true", None)])
def test_the_commands_that_it_prints_work(tmp_path, monkeypatch, capsys, name, where):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "new", "task", name, *(["--output_path", where] if where else []))
    assert code == 0 and err == ""
    folder = tmp_path / (where or name)
    assert sorted(path.name for path in folder.iterdir()) == sorted([f"{name}.yaml", "groups.jsonl", "images"])
    assert len(list((folder / "images").iterdir())) == 6
    commands = [line.strip() for line in out.splitlines() if line.startswith("  ttmbench ")]
    assert len(commands) == 3
    for command in commands:
        extra = ["--ttm_args", "iterations=1,epochs=1"] if "--ttm" in command else []
        extra += ["--device", "cpu", "--bootstrap_iters", "10"] if "--model" in command else []
        code, out, err = run(capsys, *shlex.split(command)[1:], *extra)
        assert code == 0, (command, out, err)
    registry = build_registry([folder])
    groups = load_task_data(registry, find_task(registry, name)).groups
    assert [group.group_id for group in groups] == ["g1", "g2", "g3"]
    assert all(len(set(group.captions)) == 2 for group in groups)


@pytest.mark.parametrize("name", ["../evil", "a b", "", ".hidden", "-x", "a/b", "x.yaml"])
def test_what_is_no_name_is_refused(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "new", "task", "--output_path", "x", "--", name)
    assert code == 2 and out == "" and err.startswith("ttmbench") and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task", "mine", "-o", "full"], "already exists and is not empty"),
        (["task", "mine", "-o", "full/notes.txt"], "is a file"),
        (["task", "mine", "-o", "full/notes.txt/deeper"], "cannot be written"),
        (["adapter", "mine", "-o", "full"], "already exists and is not empty"),
        (["planet", "mine"], "planet"),
    ],
)
def test_nothing_is_overwritten_or_half_made(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "full", "mine", "notes.txt")
    code, out, err = run(capsys, "new", *words)
    assert code == 2 and out == "" and message in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "notes.txt"]
