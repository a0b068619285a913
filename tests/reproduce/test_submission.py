"""A submission is believed if its numbers follow from its scores, task and records; each kind of forgery is refused."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support.submissions import make_submission, put, stated

from ttmbench.cli import main
from ttmbench.cli.validate import read_command
from ttmbench.config import make_run_config
from ttmbench.evaluator.run_key import stated_key
from ttmbench.reproduce.submission.check import check_submission, refuse_copies
from ttmbench.reproduce.submission.findings import Findings

T = "shapes_color"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return make_submission(tmp_path_factory.mktemp("submission") / "honest")


def check(path, registry, **how) -> Findings:
    return check_submission(path, registry, read_command, **how)


def lines(findings) -> str:
    return "\n".join(one.line for one in findings.found)


def test_an_honest_run_is_sound(honest, capsys):
    assert main(["validate", str(honest / "x.json")]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and ": ok; " in out and "could not" not in out
    assert main(["validate", str(honest)]) == 0, "a folder of documents"


def test_tasks_and_results_in_one_command(honest, capsys):
    assert main(["validate", "shapes_color", str(honest / "x.json"), "--schema_only"]) == 0
    assert "shapes_color: ok" in capsys.readouterr().out


# ---- forgeries: what was done, and what is said


def results(forged, **numbers):
    forged.document["results"][T] |= {key.replace("__", ","): value for key, value in numbers.items()}


def edited_metric(forged):
    results(forged, group_match__ttm=0.9375)


def edited_everything_but_the_scores(forged):
    """The number, every seed's last iteration, and the file of iterations with its digest."""
    results(forged, group_match__ttm=0.9375, group_match_seed_std__ttm=0.0)
    for one in forged.document["ttm"][T]["iterations"]:
        one["metrics"]["group_match"] = 0.9375
    forged.edit_lines("ttm", lambda found: [one["metrics"].update(group_match=0.9375) for one in found])


def edited_chance(forged):
    forged.document["chance"][T]["group_match"] = 0.05


def edited_breakdown(forged):
    breakdown = next(iter(forged.document["breakdowns"]["shapes_replace"].values()))
    next(iter(breakdown.values()))["group_match,none"] = 1.0


def edited_samples(forged):
    forged.edit_lines("samples", lambda found: found[0].update(scores=[[9.0, 0.0], [0.0, 9.0]]), sign=False)


def edited_samples_and_digest(forged):
    forged.edit_lines("samples", lambda found: found[0].update(scores=[[9.0, 0.0], [0.0, 9.0]]))


def edited_samples_and_scores(forged):
    edited_samples_and_digest(forged)

    def better(arrays):
        arrays["scores.none.0"][0] = [[9.0, 0.0], [0.0, 9.0]]

    forged.edit_scores(better)


def edited_metrics_of_samples(forged):
    forged.edit_lines("samples", lambda found: [one["metrics"].update(group_score=1.0) for one in found])


def edited_scores_and_digest(forged):
    forged.edit_scores(lambda arrays: arrays["scores.ttm.0"].fill(0.0))
    forged.document["artifacts"].pop(forged.file("samples").name)


def an_older_task(forged):
    forged.document["versions"][T] = forged.document["configs"][T]["version"] = 0


def fewer_metrics(forged):
    """The worst metric is left out, everywhere."""
    document = forged.document
    document["configs"][T]["metrics"].remove("group_score")
    for key in ("results", "ci", "ties", "tracks"):
        document[key][T] = {name: one for name, one in document[key][T].items() if not name.startswith("group_score")}
    for key in ("chance", "higher_is_better"):
        document[key][T].pop("group_score")


def limited_called_full(forged):
    forged.document["n-samples"][T] = {"original": 200, "effective": 200, "clusters": 200}
    forged.document["datasets"][T]["n_groups"] = 200


def limited_called_full_in_every_place(forged):
    for task in ("shapes_color", "shapes_replace"):
        forged.document["n-samples"][task] = {"original": 200, "effective": 200, "clusters": 200}
        forged.document["datasets"][task]["n_groups"] = 200
    forged.document["config"]["limit"] = None
    forged.document["command"] = forged.document["command"].replace("--limit 16 ", "")


def dropped_seed(forged):
    record = forged.document["ttm"][T]
    record["seeds"] = record["audit_labels"]["seeds"] = [0]
    record["iterations"] = [one for one in record["iterations"] if one["seed"] == 0]


def dropped_seed_in_every_place(forged):
    for task in ("shapes_color", "shapes_replace"):
        for record in (forged.document["ttm"][task], forged.document["oracle"][task]):
            record["seeds"] = [0]
            record["iterations"] = [one for one in record["iterations"] if one["seed"] == 0]
        forged.document["ttm"][task]["audit_labels"]["seeds"] = [0]
    forged.document["config"]["seeds"] = [0]
    forged.document["command"] = forged.document["command"].replace("--seeds 0,1", "--seeds 0")


def oracle_called_ttm(forged):
    """Scores and numbers of the oracle under the name of TTM; its records too, and the samples left out."""
    document = forged.document
    for key in ("results", "ci", "ties"):
        own = document[key][T]
        for name in [name for name in own if name.endswith(",oracle")]:
            own[name.replace(",oracle", ",ttm")] = own[name]
    document["ttm"][T]["iterations"] = document["oracle"][T]["iterations"]
    document["artifacts"].pop(forged.file("samples").name)

    def swapped(arrays):
        for seed in (0, 1):
            arrays[f"scores.ttm.{seed}"] = arrays[f"scores.oracle.{seed}"]

    forged.edit_scores(swapped)
    iterations = [{**one} for one in document["oracle"][T]["iterations"]]
    for one in iterations:
        one.pop("seconds")

    def replaced(found):
        found[:] = iterations

    forged.edit_lines("ttm", replaced)


def iteration(forged, **changes):
    """An iteration edited in the document and in the file beside it."""
    forged.document["ttm"][T]["iterations"][0] |= changes
    forged.edit_lines("ttm", lambda found: found[0].update(changes))


def edited_iteration_metric(forged):
    iteration(forged, metrics={**forged.document["ttm"][T]["iterations"][0]["metrics"], "group_match": 0.9})


def edited_iteration_in_the_document(forged):
    forged.document["ttm"][T]["iterations"][1]["loss"][0] += 1.0


def dropped_iteration(forged):
    forged.document["ttm"][T]["iterations"].pop()
    forged.edit_lines("ttm", lambda found: found.pop())


def artifacts_of_another_run(forged):
    forged.edit_scores(lambda arrays: None, about={"model": "siglip-b16", "data_sha256": "ab" * 32})


def file_of_another_task(forged):
    path = forged.file("samples")
    path.write_bytes(forged.file("samples", "shapes_replace").read_bytes())
    forged.sign(path)


def renamed_model_in_every_place(forged):
    """Passed off as another model; the fingerprint is that of the one that was run."""
    forged.everywhere('"tiny-clip"', '"tiny-clip-seed1"')
    forged.everywhere("--model tiny-clip ", "--model tiny-clip-seed1 ")
    forged.edit_scores(lambda arrays: None, about={"model": "tiny-clip-seed1"})


def hub_model(forged):
    """As above, for a model whose repository and commit are known."""
    forged.everywhere('"tiny-clip"', '"clip-b32"')
    forged.everywhere("--model tiny-clip ", "--model clip-b32 ")


def dropped_task(forged):
    for value in forged.document.values():
        if isinstance(value, dict):
            value.pop("shapes_replace", None)
    forged.document["artifacts"] = {
        name: one for name, one in forged.document["artifacts"].items() if one["task"] != "shapes_replace"
    }


def dropped_filter(forged):
    for key in ("results", "ci", "ties", "tracks"):
        own = forged.document[key][T]
        forged.document[key][T] = {name: one for name, one in own.items() if not name.endswith(",ttm")}
    forged.document["ttm"].pop(T)


def other_data(forged):
    """Another digest of the data in every place that has one."""
    digest = forged.document["task_hashes"][T]
    forged.everywhere(digest, "ab" * 32)
    forged.edit_scores(lambda arrays: None, about={"data_sha256": "ab" * 32})


def secret_in_the_command(forged):
    forged.document["command"] += " --model_args api_key=sk-1234567890abcdef"


def another_command(forged):
    forged.document["command"] = forged.document["command"].replace("epochs=1", "epochs=5")


FORGERIES = [
    (edited_metric, "results.shapes_color.group_match,ttm: is 0.9375, its scores give 0."),
    (edited_everything_but_the_scores, "results.shapes_color.group_match,ttm: is 0.9375, its scores give 0."),
    (
        lambda forged: results(forged, group_match_stderr__ttm=0.001),
        "results.shapes_color.group_match_stderr,ttm: is 0.001, its scores give",
    ),
    (
        lambda forged: results(forged, group_match_seed_std__ttm=0.001),
        "results.shapes_color.group_match_seed_std,ttm: is 0.001, its scores give",
    ),
    stated("ci/shapes_color/group_match,ttm", [0.9, 0.95], "its scores give ["),
    stated("ties/shapes_color/group_score,none", 3, "its scores give 0"),
    (edited_chance, "chance.shapes_color.group_match: is 0.05, 2x2 groups give 0.5"),
    (edited_breakdown, "breakdowns.shapes_replace."),
    (edited_samples, "artifacts.x_samples_shapes_color.jsonl: has "),
    (edited_samples_and_digest, "1 groups have other scores than the file of scores, the first is color-0-0000"),
    (edited_samples_and_scores, "results.shapes_color."),
    (edited_metrics_of_samples, "x_samples_shapes_color.jsonl: line "),
    (
        lambda forged: forged.edit_lines("samples", lambda found: [one.update(margin=99.0) for one in found]),
        "margin is 99.0, its scores give ",
    ),
    (lambda forged: forged.edit_lines("samples", lambda found: found.pop()), "is not there for every filter and seed"),
    (
        lambda forged: forged.edit_scores(lambda arrays: arrays["scores.ttm.0"].fill(0.0), sign=False),
        "so it is another file",
    ),
    (edited_scores_and_digest, "results.shapes_color.group_match,ttm: is "),
    (
        lambda forged: forged.edit_scores(lambda arrays: arrays["scores.ttm.0"].fill(float("nan"))),
        "not a finite number",
    ),
    (an_older_task, "versions.shapes_color: is 0, this package has version 1 of the task"),
    stated("configs/shapes_color/source/seed", 3, "version 1 of the task has 0"),
    (fewer_metrics, "configs.shapes_color.metrics: is ["),
    (limited_called_full, "n-samples.shapes_color.effective: is 200, config.limit 16 gives 16"),
    (limited_called_full_in_every_place, "n-samples.shapes_color.effective: is 200, its scores have 16"),
    stated("config/limit", None, "the command says 16"),
    (
        put("n-samples", T, to={"original": 16, "effective": 16, "clusters": 16}),
        "n-samples.shapes_color.original: is 16, the task has 200",
    ),
    (dropped_seed, "ttm.shapes_color.seeds: is [0], config.seeds says [0, 1]"),
    (dropped_seed_in_every_place, "has scores of 2 seeds, config.seeds 1"),
    stated("tracks/shapes_color/group_match,ttm", "matching", "its filter and metric imply test_time"),
    stated("track", "zero_shot", "its numbers reach oracle"),
    (
        put("model_info", "finetuned", to={"tasks": [{"task": T}]}),
        "is test_time, its filter and metric imply supervised",
    ),
    (oracle_called_ttm, "selected: is "),
    (lambda forged: forged.document["ttm"][T].pop("audit_labels"), "ttm.shapes_color.audit_labels: is missing"),
    stated("ttm/shapes_color/audit_labels/seeds", [1], "the seeds are [0, 1]"),
    stated("config/audit_labels", False, "the audit's record says True"),
    (lambda forged: iteration(forged, threshold=0.125), "threshold: is 0.125, the raw scores give "),
    (lambda forged: iteration(forged, selected=8, coverage=0.5), "selected: is 8, the raw scores give 4"),
    (lambda forged: iteration(forged, coverage=0.75), "coverage: is 0.75, selected / candidates is 0.25"),
    (
        lambda forged: iteration(forged, pseudo_label_accuracy=0.321),
        "pseudo_label_accuracy: is 0.321, which is no share of 4",
    ),
    (edited_iteration_metric, "metrics.group_match: is 0.9, which 16 groups cannot give"),
    (lambda forged: iteration(forged, learning_rate=1.0), "learning_rate: is 1.0, the settings give "),
    (edited_iteration_in_the_document, "x_ttm_shapes_color.jsonl: line 2 differs from the document in loss"),
    (dropped_iteration, "iterations of seed 1: is [1], all of them are [1, 2]"),
    (
        put("ttm", T, "hyperparameters", "iterations", to=10),
        "hyperparameters.iterations: is 10, config.ttm_args says 2",
    ),
    (artifacts_of_another_run, "x_scores_shapes_color.safetensors.model: is siglip-b16, the document says tiny-clip"),
    (file_of_another_task, "x_samples_shapes_color.jsonl: group "),
    stated("model_name", "my-model", "config says tiny-clip"),
    (renamed_model_in_every_place, "fingerprint.pretrained: is tiny_clip, model tiny-clip-seed1 has tiny_clip_seed1"),
    (hub_model, "fingerprint.pretrained: is tiny_clip, model clip-b32 has openai/clip-vit-base-patch32"),
    (lambda forged: forged.document["model_info"].pop("fingerprint"), "model_info.fingerprint: is missing"),
    (
        put("model_info", "fingerprint", to={"architecture": "CLIPModel"}),
        "model_info.fingerprint: names no digest or commit",
    ),
    stated("model_info/trained_on", [], "model tiny-clip states ['rendered-scenes']"),
    (put("packages", "torch", to="1.0"), "its settings, task files and packages give"),
    (put("config", "device", to="cuda"), "its settings, task files and packages give"),
    stated("run_key", None, "its settings, task files and packages give"),
    stated("higher_is_better/shapes_color/group_match", False, "the metric says True"),
    (dropped_task, "results.shapes_replace: is missing, config.tasks names it"),
    (dropped_filter, "results.shapes_color: has no number with filter ttm, and config asks for it"),
    (put("groups", to={"sugarcrepe": {"group_score,none": 0.99}}), "groups.sugarcrepe: is {"),
    (other_data, "task_hashes.shapes_color: is abababab"),
    (put("datasets", T, "groups_sha256", to="ab" * 32), "datasets.shapes_color.groups_sha256: is abababab"),
    (secret_in_the_command, "command: holds what looks like a key"),
    (put("command", to=""), "command: is empty"),
    (another_command, "config.ttm_args.epochs: is 1, the command says 5"),
    (put("status", to="interrupted"), "status: is interrupted"),
    (
        put("errors", to=[{"task": T, "stage": "ttm", "type": "ValueError", "message": "no"}]),
        "errors.0: task shapes_color failed: no",
    ),
    (
        put("config", to={"scores": "x.npz", "task": T, "limit": None, "seed": 0}),
        "config.model: is missing: numbers of stored scores",
    ),
    stated("config/bootstrap_iters", 10**9, "at most 100000 are taken"),
]


BY_THE_DATA = (other_data,)


@pytest.mark.parametrize(("forge", "said"), FORGERIES)
def test_a_forgery_is_refused_with_its_reason(forged, registry, forge, said):
    forge(forged)
    findings = check(forged.save(), registry, with_data=forge in BY_THE_DATA)
    assert said in lines(findings) and findings.wrong, lines(findings)[:2000]
    assert all("\n" not in one.line and len(one.line) < 700 for one in findings.found)


def test_every_finding_is_a_line_and_the_exit_code_is_3(forged, capsys):
    edited_metric(forged)
    edited_chance(forged)
    assert main(["validate", str(forged.save())]) == 3
    out = capsys.readouterr().out.splitlines()
    assert (
        len(out) > 2 and all(one.startswith(f"{forged.path}: ") for one in out) and not any("sound" in x for x in out)
    )


def test_what_cannot_be_checked_refuses_unless_allowed(forged, capsys):
    forged.document["artifacts"] = {}
    path = str(forged.save())
    assert main(["validate", path, "--schema_only"]) == 3
    out = capsys.readouterr().out
    assert "results.shapes_color: cannot be checked: there is neither a file of scores" in out
    assert main(["validate", path, "--schema_only", "--allow_unchecked"]) == 0
    assert ": ok; " in (out := capsys.readouterr().out) and "4 values could not be checked" in out
    edited_metric(forged)
    forged.save()
    assert main(["validate", path, "--schema_only", "--allow_unchecked"]) == 3, "the last iterations say otherwise"
    assert "group_match,ttm: is 0.9375, the last iterations give" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["samples", "scores"])
def test_samples_or_scores_alone_suffice(forged, registry, kind):
    other = {"samples": "scores", "scores": "samples"}[kind]
    for task in ("shapes_color", "shapes_replace"):
        forged.document["artifacts"].pop(forged.file(other, task).name)
    path = forged.save()
    assert not check(path, registry).found
    if kind == "scores":
        findings = check(path, registry, with_data=False)
        assert not findings.wrong, lines(findings)
        assert [one.place for one in findings.unchecked] == ["breakdowns.shapes_color", "breakdowns.shapes_replace"]
        assert "cannot be checked: tags are in the samples" in lines(findings)


def test_two_models_with_one_set_of_scores(forged, honest, registry):
    """The whole run of another, with a fingerprint of one's own."""
    forged.document["model_info"]["fingerprint"]["weights_sha256"] = "ab" * 32
    both = {"a.json": check(honest / "x.json", registry), "b.json": check(forged.save(), registry)}
    assert not both["a.json"].found and not both["b.json"].found
    refuse_copies(both)
    assert "holds bit for bit the raw scores of a.json, which is of another model" in lines(both["b.json"])


def test_a_command_with_a_file_of_options_is_held_to_what_it_says_itself(forged, registry):
    forged.document["command"] = "ttmbench --config mine.yaml --seeds 0,1 --limit 16 --output_path x.json"
    assert not check(forged.save(), registry).found
    forged.document["command"] = "ttmbench --config mine.yaml --seeds 0,1,2 --output_path x.json"
    assert "config.seeds: is [0, 1], the command says [0, 1, 2]" in lines(check(forged.save(), registry))


@pytest.mark.parametrize(
    "command", ["rm -rf /", "ttmbench score x.npz", "ttmbench --model m --no_such_option", "ttmbench"]
)
def test_commands_that_are_none(forged, registry, command, capsys):
    forged.document["command"] = command
    assert "command: cannot be checked: it cannot be read as one of ttmbench" in lines(check(forged.save(), registry))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"deterministic": True}, "with --deterministic it hangs on the processor, too"),
        ({"samples": "ids.json"}, "the file of --samples is part of it"),
        ({"ttm_also": [T]}, "the files of the tasks of --ttm_also are part of it"),
        ({"model_args": {"token": "<redacted>"}}, "a secret is part of it"),
    ],
)
def test_a_key_that_hangs_on_more_than_the_document_is_noted(honest, changes, why):
    document = json.loads((honest / "x.json").read_text())
    document["config"] |= changes
    with pytest.raises(ValueError, match=why):
        stated_key(document, make_run_config({"model": "tiny-clip", "tasks": [T]}), {})


def test_the_key_of_another_version_is_noted(forged, capsys):
    forged.document["packages"]["ttmbench"] = "0.0.9"
    assert main(["validate", str(forged.save()), "--schema_only"]) == 0
    out = capsys.readouterr().out
    assert "note: run_key is not computed again: it is of ttmbench 0.0.9, whose settings and tasks are others" in out


def test_a_folder_of_a_tasks_name_is_the_task(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes_color").mkdir()
    (tmp_path / "shapes_color" / "x.json").write_text("{}")
    assert main(["validate", "shapes_color", "--schema_only"]) == 0
    assert "shapes_color: ok" in capsys.readouterr().out
    assert main(["validate", "./shapes_color"]) == 4


def test_what_is_no_result_ends_with_4(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[1]")
    assert main(["validate", str(tmp_path / "x.json")]) == 4
    assert "is no results document" in capsys.readouterr().out
    assert main(["validate", str(tmp_path / "nothing.json")]) == 4
    (tmp_path / "x.json").write_text(json.dumps({"kind": "analysis"}))
    assert main(["validate", str(tmp_path)]) == 4
    assert "has no results document" in capsys.readouterr().err


# ---- files made to do harm


def a_link(forged):
    path = forged.file("scores")
    path.rename(forged.folder.parent / "elsewhere")
    path.symlink_to(forged.folder.parent / "elsewhere")


def a_pipe(forged):
    path = forged.file("scores")
    path.unlink()
    os.mkfifo(path)


def a_folder(forged):
    path = forged.file("scores")
    path.unlink()
    path.mkdir()


def a_huge_file(forged):
    path = forged.file("samples")
    with path.open("wb") as stream:
        stream.truncate(3_000_000_000)
    forged.document["artifacts"][path.name]["bytes"] = 3_000_000_000


def another_name(forged, name):
    artifacts = forged.document["artifacts"]
    artifacts[name] = artifacts.pop(forged.file("scores").name)


def twice(forged):
    path = forged.file("scores")
    shutil.copy(path, forged.folder / "y.safetensors")
    forged.document["artifacts"]["y.safetensors"] = dict(forged.document["artifacts"][path.name])


def deep_lines(forged):
    forged.file("samples").write_text("[" * 100_000)
    forged.sign(forged.file("samples"))


def no_array(forged):
    forged.file("scores").write_bytes(b"\xff" * 64)
    forged.sign(forged.file("scores"))


def many_findings(forged):
    forged.document["task_status"] |= {f"t{number}": "failed" for number in range(500)}


HOSTILE = [
    (a_link, "is no regular file (links are not followed)"),
    (a_pipe, "is no regular file"),
    (a_folder, "is no regular file"),
    (a_huge_file, "is too large: 3000000000 bytes, at most 2000000000 are read"),
    (lambda forged: another_name(forged, "../x.safetensors"), "is no plain name of a file beside the document"),
    (lambda forged: another_name(forged, "/etc/passwd"), "is no plain name of a file beside the document"),
    (lambda forged: another_name(forged, "a\0b"), "is no plain name of a file beside the document"),
    (lambda forged: another_name(forged, "nothing"), "cannot be read (No such file or directory)"),
    (twice, "is a second file of scores of task shapes_color"),
    (deep_lines, "line 1 is not JSON (it nests too deeply)"),
    (no_array, "x_scores_shapes_color.safetensors: holds no safetensors arrays"),
    (
        lambda forged: forged.edit_lines("ttm", lambda found: found.insert(0, {"iteration": [[]]})),
        "has 5 iterations, the document 4",
    ),
    (
        put("artifacts", "\x1b[2J\u202e\n.jsonl", to={"kind": "\x1b]0;x\x07", "sha256": "ab" * 32, "bytes": 1}),
        "is of kind ",
    ),
    (many_findings, "findings"),
]


@pytest.mark.parametrize(("harm", "said"), HOSTILE)
def test_hostile_files_end_in_plain_lines(forged, capsys, harm, said):
    harm(forged)
    assert main(["validate", str(forged.save()), "--schema_only"]) == 3
    out, err = capsys.readouterr()
    assert said in out and err == "", out[:2000]
    assert all(line.isprintable() and line.startswith(str(forged.path)) for line in out.splitlines())
    assert out.count("\n") < 60


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema_version": "1.0", "date": NaN}', '{"a": 1, "a": 2}', ""])
def test_hostile_documents_end_in_one_line(tmp_path, capsys, text):
    (tmp_path / "x.json").write_text(text)
    assert main(["validate", str(tmp_path / "x.json")]) == 4
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and err == "" and out.startswith(f"{tmp_path / 'x.json'}: ")
