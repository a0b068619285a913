"""Copies of the named repositories behind a server that speaks the hub's protocol: the ordinary command runs them."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from support.commands import run_commands
from support.hub_runs import (
    CLIP,
    KINDS,
    NAMED,
    RAW,
    SIGLIP_OF_TIMM,
    TASKS,
    check_done,
    check_same,
    check_validated,
    commit_of,
    copy_of,
    runs,
    weights_of,
    write_copies,
    write_tags,
)
from support.hub_server import STRANGER, TOKEN, HubServer

from ttmbench import tasks as task_files

MODELS = [("siglip-b16", ""), ("qwen3-vl-embedding-2b", "")]  # the rest of the names is slow
MODELS += [("open_clip", f"model=hf-hub:{SIGLIP_OF_TIMM}"), ("hf", f"pretrained={CLIP}")]
SOME_TASKS = (
    *("colorswap", "winoground", "sugarcrepe_swap_obj", "whatsup_a_left_right", "rocketscience", "vismin_counting"),
    *("conme_replace_obj", "conme_replace_rel"),  # other files of one repository
)
SMALL = "--device cpu --bootstrap_iters 0 --use_cache off"
# transformers would ask for these to have weights converted behind one's back.
CONVERSION = ("/discussions", "/commits/", "/refs?")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with HubServer(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def hub(running):
    running.forget()
    return running


@pytest.fixture
def home(tmp_path):
    return tmp_path


def test_models_run_and_run_again_without_the_hub(hub, home):
    pytest.importorskip("sentence_transformers")
    write_copies(hub.root, [copy_of(model, given) for model, given in MODELS] + ["stanfordnlp/colorswap"])
    online, offline = (runs(MODELS, home, offline=offline) for offline in (False, True))
    done = run_commands([run.command for run in online], hub.environment(home, TOKEN), home)
    check_done(done)
    assert weights_of(hub) == [
        "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed/model.safetensors",
        "9f2f7e710d6d81056aa5c0a4f04764fec6bb7bda/model.safetensors",
        "41f575766f40e752fdd1383e9565b7f02388c1c4/open_clip_pytorch_model.bin",
        "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268/pytorch_model.bin",
    ], "one set of weights a model"
    assert [one.err.count("is a pickle") for one in done] == [0, 0, 1, 1]
    assert not [one.path for one in hub.log if any(part in one.path for part in CONVERSION)]
    assert not any(one.token for one in hub.log if one.path.startswith("/storage")), "a token leaves for another host"
    unpinned = online[-1].document["model_info"]["source"]
    assert unpinned["commit"] == "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268"
    assert unpinned["files"] == ["pytorch_model.bin"]

    asked = len(hub.log)
    hub.misbehave("", 503, times=1000)
    check_done(run_commands([run.command for run in offline], hub.environment(home), home))
    assert len(hub.log) == asked
    check_same(online, offline)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "arguments"), [*((name, "") for name in NAMED), *KINDS])
def test_every_model_runs_offline_as_online(hub, home, model, arguments):
    write_copies(hub.root, [copy_of(model, arguments), "stanfordnlp/colorswap"])
    online, offline = (runs([(model, arguments)], home, offline=offline) for offline in (False, True))
    given = f"--model_args {arguments}" if arguments else ""
    fetch = f"download --model {model} {given} --tasks colorswap"
    commands = [fetch, *(one.command for one in (*offline, *online))]
    check_done(run_commands(commands, hub.environment(home, TOKEN), home))
    weights = weights_of(hub)
    kinds, commits = {Path(name).suffix for name in weights}, {name.partition("/")[0] for name in weights}
    assert len(kinds) == len(commits) == 1, "one set of weights a model"
    check_same(online, offline)


@pytest.mark.slow
def test_every_task_is_fetched_and_read_offline(hub, home):
    write_copies(hub.root, {copy_of(name) for name in ("siglip-b16", *TASKS)})
    write_tags(home)
    names, output = ",".join(TASKS), home / "r.json"
    fetch = f"download --tasks {names} --alternative 2 --model siglip-b16"
    run = f"--model siglip-b16 {RAW.replace('colorswap', names)} -o {output} --offline"
    validate = f"validate {' '.join(TASKS)} --offline"
    fetched, validated, ran = run_commands([fetch, validate, run], hub.environment(home, TOKEN), home, timeout=3600)
    check_done([fetched, ran])
    check_validated(validated, TASKS)
    sent = {name.rpartition("/")[2].rpartition("-000")[0] for name in hub.fetched("datasets/")}
    assert not sent & {"train", "VG_Relation", "VG_Attribution", "COCO_Order"}


def test_download_brings_what_an_offline_run_of_tasks_needs(hub, home):
    write_copies(hub.root, {copy_of(name) for name in ("siglip-b16", *SOME_TASKS)})
    write_tags(home)
    names, output = ",".join(SOME_TASKS), home / "runs" / "r.json"
    environment = hub.environment(home, TOKEN)
    (done,) = run_commands([f"download --model siglip-b16 --tasks {names} --alternative 2"], environment, home)
    check_done([done])
    assert done.out.count(" ready ") == len(SOME_TASKS) + 1

    asked = len(hub.log)
    run = f"--model siglip-b16 {RAW.replace('colorswap', names)} -o {output} --offline"
    validate = f"validate {' '.join(SOME_TASKS)} --offline"
    compare = f"reproduce mteb_winoground --models siglip-b16 --runs {output.parent} -o {home / 'compared.json'}"
    validated, ran, compared = run_commands([validate, run, compare], environment, home)
    check_validated(validated, SOME_TASKS)
    check_done([ran])
    assert len(hub.log) == asked
    rows = json.loads((home / "compared.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 3 and compared.code == 3 and {row["verdict"] for row in rows} == {"not comparable"}, "a part"
    assert all(str(output) in json.dumps(row) for row in rows)
    read = {task: data["revision"] for task, data in json.loads(output.read_text(encoding="utf-8"))["datasets"].items()}
    assert read == {task: commit_of(hub.root, copy_of(task)) for task in SOME_TASKS}


@pytest.mark.parametrize("token", [None, STRANGER])
def test_a_gated_dataset_says_what_to_do(hub, home, token):
    write_copies(hub.root, ["stanfordnlp/colorswap"])
    (done,) = run_commands(["download colorswap"], hub.environment(home, token), home)
    said = done.out + done.err
    assert done.code == 4 and "Traceback" not in said and not hub.fetched()
    assert "accept its terms at https://huggingface.co/datasets/stanfordnlp/colorswap and set HF_TOKEN" in said


def test_a_token_that_the_hub_does_not_know_is_told(hub, home):
    write_copies(hub.root, ["stanfordnlp/colorswap", CLIP])
    commands = ["download colorswap", "download --model clip-b32"]
    for done in run_commands(commands, hub.environment(home, "hf_expired"), home):
        assert done.code == 4 and "does not know the token that it was shown: HF_TOKEN" in done.out, done


@pytest.mark.slow
def test_a_hub_that_falters_is_asked_again(hub, home):
    write_copies(hub.root, [CLIP, "MMVP/MMVP_VLM"])
    hub.misbehave("/api/models/openai/clip-vit-base-patch32", 429)
    listing = "tree" if huggingface_hub.__version__ >= "1" else "revision"  # which both list the files
    hub.misbehave(f"/api/datasets/MMVP/MMVP_VLM/{listing}", 500)
    hub.misbehave("Questions.csv", 503)
    hub.misbehave("resolve/", 500, times=3, every=40)
    hub.misbehave("model.safetensors", 429)
    hub.misbehave("/storage/", after=40_000)
    commands = ["download --model clip-b32 --tasks mmvp_vlm"]
    (done,) = run_commands(commands, hub.environment(home), home, timeout=900)
    check_done([done])
    assert done.out.count(" ready ") == 2
    assert not [fault for fault in hub.faults if fault.times], "a fault that did not come about proves nothing"
    (weights,) = (home / "hf").rglob("snapshots/*/model.safetensors")
    original = hub.root / "models" / CLIP / weights.parent.name / "model.safetensors"
    assert weights.read_bytes() == original.read_bytes()

    asked, output = len(hub.log), home / "r.json"
    run = f"--model clip-b32 {RAW.replace('colorswap', 'mmvp_vlm')} -o {output} --offline"
    validated, ran = run_commands(["validate mmvp_vlm --offline", run], hub.environment(home), home)
    check_validated(validated, ["mmvp_vlm"])
    check_done([ran])
    assert len(hub.log) == asked
    read = json.loads(output.read_text(encoding="utf-8"))["datasets"]["mmvp_vlm"]["revision"]
    assert read == commit_of(hub.root, "MMVP/MMVP_VLM")


@pytest.mark.slow
def test_imagenet_of_the_hub_is_read_by_its_columns(hub, home):
    """The whole has 50,000 images; the copy has the columns, a validation split in the middle, and 1,000 images.

    What is run has seven of the eighty prompts for each class.
    """
    write_copies(hub.root, ["ILSVRC/imagenet-1k"])
    content = (Path(task_files.__file__).parent / "imagenet.yaml").read_text(encoding="utf-8")
    content = content.replace("task: imagenet\n", "task: few_prompts\n").replace("OPENAI_IMAGENET_", "SIMPLE_IMAGENET_")
    (home / "few_prompts.yaml").write_text(content, encoding="utf-8")
    command = f"--model tiny-clip --tasks {home / 'few_prompts.yaml'} {SMALL} --limit 30"
    whole, part = run_commands(
        ["validate imagenet", f"{command} -o {home / 'r.json'} --log_samples"], hub.environment(home, TOKEN), home
    )
    assert whole.code == 4 and "has 1000 groups, but task 'imagenet' (version 1) has 50000" in whole.out
    check_done([part])
    document = json.loads((home / "r.json").read_text(encoding="utf-8"))
    assert document["datasets"]["few_prompts"]["shape"] == [30, 1000]
    assert document["datasets"]["few_prompts"]["revision"] == commit_of(hub.root, "ILSVRC/imagenet-1k")
    assert set(document["ranking"]["few_prompts"]["classes"]["doubled"]) == {"missile", "sunglasses"}
    lines = (home / "r_samples_few_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["captions"] for line in lines] == [[str(7 * index)] for index in range(30)]
    assert not any("train" in name or "test-" in name for name in hub.fetched("datasets/"))
