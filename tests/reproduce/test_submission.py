"""A submission is believed if its numbers follow from its scores, task and records; each kind of forgery is refused."""

from __future__ import annotations

import json
import os
import shlex
import shutil

import numpy as np
import pytest
from support.submissions import make_submission, put

from ttmbench.cli import main
from ttmbench.cli.validate import read_command
from ttmbench.errors import DataError
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


def with_command(forged, old, new):
    """Another command, and nothing else."""
    forged.document["command"] = forged.document["command"].replace(old, new, 1)


def hyperparameter(forged, name, value):
    """A setting that the command does not give, wherever it is recorded."""
    forged.document["ttm"][T]["hyperparameters"][name] = value


def every_loss(value):
    def forge(forged):
        for line in forged.document["ttm"][T]["iterations"]:
            line["loss"] = [value]
        forged.edit_lines("ttm", lambda found: [line.update(loss=[value]) for line in found])

    return forge


def named(forged, name):
    """A name of one's own, everywhere."""
    document = forged.document
    document["command"] = document["command"].replace("--limit 16", f"--limit 16 --name {shlex.quote(name)}")
    document["config"]["model_name"] = document["model_name"] = name
    forged.edit_scores(lambda arrays: None, about={"model": name})


def half_as_exact(forged):
    """Every array in half precision."""
    forged.edit_scores(lambda arrays: arrays.update({name: one.astype("float16") for name, one in arrays.items()}))


def swapped_seeds(forged):
    def swap(arrays):
        for end in ("", ".0"):
            one, other = f"scores.ttm.0{end}", f"scores.ttm.1{end}"
            arrays[one], arrays[other] = arrays[other], arrays[one]

    forged.edit_scores(swap)


def one_seed_twice(forged):
    """The scores of seed 0 again as those of seed 1, whose batches are drawn in another order."""
    forged.document["command"] = forged.document["command"].replace("epochs=1", "epochs=1,batch_groups=1")
    forged.edit_scores(
        lambda arrays: [arrays.update({f"scores.ttm.1{end}": arrays[f"scores.ttm.0{end}"]}) for end in ("", ".0")]
    )


def easiest_group_again_and_again(forged):
    """One group in the place of all, said to be precomputed features, whose ids are numbers."""
    document = forged.document
    document["model_info"]["fingerprint"]["features_sha256"] = document["task_hashes"][T]
    document["datasets"][T]["source"] = {"kind": "stored_features"}
    document["datasets"][T].pop("groups_sha256")

    def copies(arrays):
        for array in arrays.values():
            array[:] = array[:1]

    forged.edit_scores(copies, about={"group_ids": json.dumps([str(number) for number in range(16)])})


def newer_with_an_unknown_key(forged):
    forged.document |= {"schema_version": "1.7", "endorsed": True}


GIVE = "command, data and scores give"
FORGERIES = [
    (edited_metric, f"results.shapes_color.group_match,ttm: is 0.9375; the {GIVE} 0."),
    (edited_everything_but_the_scores, f"results.shapes_color.group_match,ttm: is 0.9375; the {GIVE} 0."),
    (edited_breakdown, "breakdowns.shapes_replace."),
    (edited_samples, "artifacts.x_samples_shapes_color.jsonl: has "),
    (edited_samples_and_digest, "x_samples_shapes_color.jsonl: line 1: scores is [[9.0, 0.0], [0.0, 9.0]], the run"),
    (edited_samples_and_scores, "results.shapes_color."),
    (edited_metrics_of_samples, "x_samples_shapes_color.jsonl: line "),
    (lambda forged: forged.edit_lines("samples", lambda found: found.pop()), "lines, the run writes "),
    (
        lambda forged: forged.edit_scores(lambda arrays: arrays["scores.ttm.0"].fill(0.0), sign=False),
        "so it is another file",
    ),
    (edited_scores_and_digest, "results.shapes_color.group_match,ttm: is "),
    (
        lambda forged: forged.edit_scores(lambda arrays: arrays["scores.ttm.0"].fill(float("nan"))),
        "not a finite number",
    ),
    (half_as_exact, "scores.none.0: is not what the run writes (float32 (16, 2, 2))"),
    (
        lambda forged: forged.edit_scores(lambda arrays: arrays.pop("scores.ttm.0.0")),
        "and scores of 1, its settings give 2",
    ),
    (swapped_seeds, "x_samples_shapes_color.jsonl: line 17: scores is "),
    (one_seed_twice, "results.shapes_color: two seeds of ttm have equal scores, and both trained"),
    (an_older_task, "versions.shapes_color: is 0"),
    (fewer_metrics, "configs.shapes_color.metrics: is ["),
    (limited_called_full, "n-samples.shapes_color.effective: is 200"),
    (
        limited_called_full_in_every_place,
        "results.shapes_color: the groups of its scores are not those of the task's data",
    ),
    (dropped_seed, "results.shapes_color: ttm, seed 1: has 0 iterations and scores of 2, its settings give 2"),
    (dropped_seed_in_every_place, "x_scores_shapes_color.safetensors.seeds: is [0, 1]; the run writes [0]"),
    (put("model_info", "finetuned", to={"tasks": [{"task": T}]}), f"is test_time; the {GIVE} supervised"),
    (oracle_called_ttm, "selected: is "),
    (edited_iteration_in_the_document, "x_ttm_shapes_color.jsonl: line 2: loss is "),
    (dropped_iteration, "has 1 iterations and scores of 2, its settings give 2"),
    (every_loss(-1.0), "a loss is a mean cross entropy"),
    (every_loss(1e30), "a loss is a mean cross entropy"),
    (every_loss(5e3), "is [5000.0], impossible for its scores"),
    (
        put("model_info", "usage", to={"requests": 3}),
        "model_info.usage: is present, but model tiny-clip does not state it",
    ),
    (put("model_info", "fingerprint", "tokenizer_sha256", to="ab"), "tokenizer_sha256: is not a digest"),
    (put("model_info", "fingerprint", "n_parameters", to=-3), "n_parameters: is -3, not a number of parameters"),
    (put("hardware", "cpus", to=-0.0), "hardware.cpus: is -0.0"),
    (put("packages", "evil", to="1.0"), "packages.evil: is not among the packages"),
    (put("code", "evil", to="ab" * 32), "code: is ['evil', 'ttmbench']; the command takes code from ['ttmbench']"),
    (put("git_hash", to="<b>main</b>"), "git_hash: is not a commit"),
    (put("timing", "mine", to={"load": 1.0}), "timing.mine: is of no task with numbers"),
    (put("efficiency", "mine", to={}), "efficiency.mine: is of no task with numbers"),
    (put("efficiency", "shapes_color", "co2_kg", to=0.1), "co2_kg: is given without country, or country without it"),
    (put("notes", "mine", to=["x"]), "notes.mine: is of no task with numbers"),
    (put("model_info", "capabilities", to=["Trainable", "Honest"]), "model_info.capabilities: is not a list of "),
    (artifacts_of_another_run, "x_scores_shapes_color.safetensors.model: is siglip-b16; the run writes tiny-clip"),
    (file_of_another_task, "x_samples_shapes_color.jsonl: line 1: group_id is "),
    (
        renamed_model_in_every_place,
        "fingerprint.pretrained: is tiny_clip; model tiny-clip-seed1 states tiny_clip_seed1",
    ),
    (hub_model, "fingerprint.pretrained: is tiny_clip; model clip-b32 has openai/clip-vit-base-patch32"),
    (put("model_info", "fingerprint", "weights_sha256", to="ab" * 32), "fingerprint.weights_sha256: is abab"),
    (put("model_info", "fingerprint", "dtype", to="bfloat16"), "the command gives float32"),
    (put("model_info", "fingerprint", "compiled", to=True), "fingerprint.compiled: is True; the command gives False"),
    (put("model_info", "fingerprint", "device", to="cuda:0"), "fingerprint.device: is cuda, and hardware.accelerator"),
    (put("model_info", "fingerprint", "features_sha256", to="ab" * 32), "fingerprint.features_sha256: is abab"),
    (lambda forged: forged.document["model_info"].pop("fingerprint"), "model_info.fingerprint: is missing"),
    (
        put("model_info", "fingerprint", to={"architecture": "CLIPModel"}),
        "model_info.fingerprint: names no digest or commit",
    ),
    (put("packages", "torch", to="1.0"), "run_key: is "),
    (put("packages", "ttmbench", to="0.0.9"), "packages.ttmbench: cannot be checked: is 0.0.9, this is "),
    (dropped_task, "results.shapes_replace: is missing; the command names it"),
    (dropped_filter, "results.shapes_color: ttm, seed 0: has 0 iterations"),
    (other_data, "task_hashes.shapes_color: is abababab"),
    (easiest_group_again_and_again, "the groups of its scores are not those of the task's data, in their order"),
    (secret_in_the_command, "command: holds what looks like a key"),
    *(
        (lambda forged, setting=setting: with_command(forged, "epochs=1", f"epochs=1,{setting}"), "config.ttm_args.")
        for setting in (
            *("lr=0.1", "weight_decay=0.9", "batch_groups=3", "augment=true", "keep_optimizer_state=true"),
            *("tau_start=0.5", "tau_end=0.5", "schedule=cosine", "lr_restart=0.5"),
        )
    ),
    *(
        (lambda forged, setting=setting: hyperparameter(forged, *setting), f"hyperparameters.{setting[0]}: is ")
        for setting in (
            *(("epochs", 5), ("lr", 0.1), ("weight_decay", 0.9), ("betas", [0.1, 0.9]), ("batch_groups", 3)),
            *(("augment", True), ("keep_optimizer_state", True), ("tau_start", 0.5)),
        )
    ),
    (
        lambda forged: with_command(forged, "--limit 16", "--limit 16 --samples ids.json"),
        "command: has --samples, a file",
    ),
    (
        lambda forged: with_command(forged, "--limit 16", "--limit 16 --config x.yaml"),
        "its --config file is not available here",
    ),
    (lambda forged: with_command(forged, "--limit 16", "--limit 16 --dry_run"), "it runs nothing"),
    (lambda forged: with_command(forged, "shapes_color,", "tasks/mine.yaml,"), "has task tasks/mine.yaml, a file"),
    (
        lambda forged: with_command(forged, "--limit 16", "--limit 16 --data_dir $(curl${IFS}x)"),
        "not quoted as a shell",
    ),
    (lambda forged: with_command(forged, "ttmbench", "LR=1 ttmbench"), "it must begin with ttmbench"),
    (lambda forged: forged.document.update(command=""), "command: is not a run of ttmbench that can be read again"),
    *(
        (lambda forged, name=name: named(forged, name), "model_name: ")
        for name in (
            "siglip-b16",
            "SigLIP_B16",
            "sig1ip-b16",
            "siglip-b\uff116",
            "s\u0456glip-b16",
            "tiny-clip\u202e",
        )
    ),
    (put("date", to=1.7e9), "runs are not older than 2026-11-01"),
    (put("date", to=4e9), "ended in the future"),
    (put("timing", T, "ttm", to=-1.0), "timing.shapes_color.ttm: is -1.0, a time that is negative"),
    (put("timing", T, "ttm", to=1e9), "a time that is longer than the run"),
    (put("timing", T, "sleep", to=1.0), "is a stage that no run has"),
    (put("notes", T, to=["x" * 5000]), "has a text of 5000 characters"),
    (put("hardware", "x", to=list(range(50_000))), "characters as JSON, at most"),
    (put("hardware", "x", to=10**400), "has a number that is out of range"),
    (put("timing", T, "load", to=-0.0), "timing: is not as a run writes it"),
    (put("model_info", "reviewed_by", to="me"), "model_info.reviewed_by: is a key that no run writes"),
    (put("schema_version", to="1.7"), "schema_version: is not as a run writes it"),
    (newer_with_an_unknown_key, "endorsed: is a key that no run of this version writes"),
    (
        lambda forged: forged.document.pop("code"),
        "run_key: cannot be computed again: code that is not stated is part of it",
    ),
    (put("status", to="interrupted"), "status: is interrupted"),
    (
        put("errors", to=[{"task": T, "stage": "ttm", "type": "ValueError", "message": "no"}]),
        "errors.0: task shapes_color failed: no",
    ),
    (put("config", to={"scores": "x.npz", "task": T, "limit": None, "seed": 0}), "config.model: is missing"),
    (
        lambda forged: with_command(forged, "--limit 16", "--limit 16 --bootstrap_iters 1000000000"),
        "at most 100000 are taken",
    ),
]


@pytest.mark.parametrize(("forge", "said"), FORGERIES)
def test_a_forgery_is_refused_with_its_reason(forged, registry, forge, said):
    forge(forged)
    findings = check(forged.save(), registry)
    assert said in lines(findings) and findings.found, lines(findings)[:2000]
    assert all("\n" not in one.line and len(one.line) < 700 for one in findings.found)


def test_every_finding_is_a_line_and_the_exit_code_is_3(forged, capsys):
    edited_metric(forged)
    put("chance", T, "group_match", to=0.05)(forged)
    assert main(["validate", str(forged.save())]) == 3
    out = capsys.readouterr().out.splitlines()
    assert (
        len(out) == 2 and all(one.startswith(f"{forged.path}: ") for one in out) and not any("sound" in x for x in out)
    )


def test_what_cannot_be_checked_refuses_unless_allowed(forged, capsys):
    forged.document["artifacts"] = {}
    path = str(forged.save())
    assert main(["validate", path, "--schema_only"]) == 3
    assert "results.shapes_color: cannot be checked: there is no file x_scores_" in capsys.readouterr().out
    assert main(["validate", path, "--schema_only", "--allow_unchecked"]) == 0
    assert "2 values could not be checked" in capsys.readouterr().out


def test_data_that_are_not_here_refuse_unless_allowed(honest, registry, monkeypatch):
    def nowhere(*_):
        raise DataError("nothing is here")

    monkeypatch.setattr("ttmbench.reproduce.submission.rebuild.load_data", nowhere)
    findings = check(honest / "x.json", registry)
    assert [one.place for one in findings.found] == ["datasets.shapes_color", "datasets.shapes_replace"]
    assert not findings.wrong and "cannot be checked: its data are not on this machine" in lines(findings)
    assert not check(honest / "x.json", registry, with_data=False).found, "nobody asked for it"


def test_near_equal_scores_are_a_copy_of_another_checkpoint_or_a_reproduction_of_the_same(honest, forged, registry):
    found = {"a.json": check(honest / "x.json", registry)}
    for name, change in (
        ("b.json", lambda scores: scores),
        ("c.json", lambda scores: 2 * scores + 1),
        ("d.json", lambda scores: scores + 1e-4 * np.sin(np.arange(scores.size))),
    ):
        other = check(honest / "x.json", registry)
        other.raw_scores = {task: change(scores) for task, scores in other.raw_scores.items()}
        both = {"a.json": found["a.json"], name: other}
        refuse_copies(both)
        assert not other.found and "reproduces the raw scores of a.json" in other.notes[0]
        other.checkpoint = "another"
        refuse_copies(both)
        assert "has (nearly) the raw scores of a.json, which names another checkpoint" in lines(other)
    unlike = check(honest / "x.json", registry)
    unlike.checkpoint = "another"
    unlike.raw_scores = {task: np.sin(9 * scores) for task, scores in unlike.raw_scores.items()}
    refuse_copies({"a.json": check(honest / "x.json", registry), "e.json": unlike})
    assert not unlike.found, "another model"


@pytest.mark.parametrize(
    "command", ["rm -rf /", "ttmbench score x.npz", "ttmbench --model m --no_such_option", "ttmbench"]
)
def test_commands_that_are_none(forged, registry, command, capsys):
    forged.document["command"] = command
    assert "command: is not a run of ttmbench that can be read again" in lines(check(forged.save(), registry))
    assert capsys.readouterr() == ("", "")


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
    assert "is not a results document" in capsys.readouterr().out
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
    (a_link, "is not a regular file (links are not followed)"),
    (a_pipe, "is not a regular file"),
    (a_folder, "is not a regular file"),
    (a_huge_file, "is too large: 3000000000 bytes, at most 2000000000 are read"),
    *(
        (lambda forged, name=name: another_name(forged, name), "there is no file x_scores_shapes_color.safetensors")
        for name in ("../x.safetensors", "/etc/passwd", "a\0b", "nothing")
    ),
    (twice, "artifacts.y.safetensors: is present, "),
    (deep_lines, "line 1 is not JSON (it nests too deeply)"),
    (no_array, "x_scores_shapes_color.safetensors: begins unlike a file of safetensors arrays"),
    (
        lambda forged: forged.edit_lines("ttm", lambda found: found.insert(0, {"iteration": [[]]})),
        "has 5 lines, the run writes 4",
    ),
    (
        put("artifacts", "\x1b[2J\u202e\n.jsonl", to={"kind": "\x1b]0;x\x07", "sha256": "ab" * 32, "bytes": 1}),
        "has control characters",
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
