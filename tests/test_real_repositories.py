"""Copies of the named repositories behind a server that speaks the hub's protocol: the ordinary command runs them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from support.commands import run_commands
from support.hub_copies import COPIES, write_copies
from support.hub_datasets import SUGARCREPE, made_up_commit
from support.hub_runs import CLIP, NAMED, RAW, SIGLIP_OF_TIMM, TAGS, TASKS, check_done, check_same, runs
from support.hub_server import STRANGER, TOKEN, HubServer

from ttmbench.registry import build_registry

QUICK = [("siglip-b16", ""), ("clip-b32", ""), ("blip-itm", ""), ("vqascore-smolvlm-256m", "")]
QUICK += [("open_clip", f"model=hf-hub:{SIGLIP_OF_TIMM}"), ("hf", f"pretrained={CLIP}")]
WEIGHTS = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx", ".ot", ".tflite")
NOT_ASKED = ("/discussions", "/commits/", "/refs")  # of those who convert weights behind one's back


@pytest.fixture(scope="session")
def repositories(tmp_path_factory) -> Path:
    """Folder of all copies, written once."""
    root = tmp_path_factory.mktemp("hub")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that write them
        write_copies(root)
    return root


@pytest.fixture
def hub(repositories):
    with HubServer(repositories) as running:
        yield running


def weights_of(hub: HubServer) -> list[str]:
    """``commit/file`` of all weights that were sent."""
    return ["/".join(name.split("/")[3:]) for name in hub.fetched("models/") if name.endswith(WEIGHTS)]


def annotations(home: Path) -> None:
    """The file that winoground's tags are in does not come from the hub; it lies in the data folder."""
    (home / "data" / "winoground").mkdir(parents=True)
    tags = {str(number): [] for number in range(400)}
    (home / "data" / "winoground" / "new_tag_assignments.json").write_text(json.dumps(tags), encoding="utf-8")


def test_every_name_and_every_dataset_has_a_copy():
    registry = build_registry()
    named = {name for name in registry.adapters if getattr(registry.adapter(name), "card", None)}
    assert named == {*NAMED, *TAGS}
    for name in NAMED:
        assert registry.adapter(name).model_args["pretrained"] in COPIES
    assert {repo for repo, _ in TAGS.values()} <= set(COPIES)
    of_hub = {name for name in registry.tasks if "hub" in json.dumps(dict(registry.task(name).spec.source))}
    assert of_hub - {"colorswap_train", "winoground_global"} <= {*TASKS, "bivlc", "mmvp_vlm_official"}, of_hub


def test_models_run_and_run_again_without_hub(hub, tmp_path):
    online, offline = (runs(QUICK, tmp_path, offline=offline) for offline in (False, True))
    refused = f"--model blip-itm --model_args weights=safetensors {RAW}"
    done = run_commands([run.command for run in online] + [refused], hub.environment(tmp_path, TOKEN), tmp_path)
    check_done(done[:-1])
    assert done[-1].code == 4 and "pytorch_model.bin and not as safetensors" in done[-1].err
    assert weights_of(hub) == [
        "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed/model.safetensors",
        "c237dc49a33fc61debc9276459120b7eac67e7ef/model.safetensors",
        "bed8ad38cb2d04a5a4bdf2d071b3c3c0a4aa724c/pytorch_model.bin",
        "7e3e67edbbed1bf9888184d9df282b700a323964/model.safetensors",
        "41f575766f40e752fdd1383e9565b7f02388c1c4/open_clip_pytorch_model.bin",
        "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268/pytorch_model.bin",
    ], "one set of weights a model"
    pickles = [one.err.count("are a pickle") for one in done[:-1]]
    assert pickles == [0, 0, 1, 0, 1, 1]
    assert not [one.path for one in hub.log if one.path.endswith(NOT_ASKED) or any(p in one.path for p in NOT_ASKED)]
    assert not any(one.token for one in hub.log if one.path.startswith("/storage"))
    assert hub.fetched("colorswap") and not hub.fetched("data/train-")
    document = online[-1].document
    assert document["model_info"]["source"] == {
        "name": CLIP,
        "commit": "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268",
        "files": ["pytorch_model.bin"],
        "format": "pickle, tensors alone",
    }
    assert document["datasets"]["colorswap"]["revision"] == made_up_commit("stanfordnlp/colorswap")

    asked = len(hub.log)
    without = {**hub.environment(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    check_done(run_commands([run.command for run in offline], without, tmp_path))
    assert len(hub.log) == asked
    check_same(online, offline)


def test_download_brings_what_an_offline_run_of_all_tasks_needs(hub, tmp_path):
    annotations(tmp_path)
    names = ",".join(TASKS)
    environment = hub.environment(tmp_path, TOKEN)
    (done,) = run_commands(["download --model siglip-b16 --tasks colorswap,winoground,mmvp_vlm"], environment, tmp_path)
    check_done([done])
    assert "siglip-b16:" in done.out and done.out.count("ready") == 4
    check_done(run_commands([f"download {names} --alternative 2"], environment, tmp_path))
    tables = {name.rpartition("/")[2] for name in hub.fetched("datasets/")}
    assert not [name for name in tables if name.startswith(("train-", "VG_Relation", "VG_Attribution", "COCO_Order"))]
    assert not {"images.zip", "examples.jsonl", "clip.jsonl"} & tables

    hub.log.clear()
    output = tmp_path / "r.json"
    run = f"--model siglip-b16 --tasks {names} {RAW.partition('colorswap')[2]} -o {output} --offline"
    validated, ran = run_commands([f"validate {' '.join(TASKS)} --offline", run], environment, tmp_path)
    assert not hub.log
    for task in TASKS:  # counts are real ones, and every picture decodes, also CMYK, grey and transparent ones
        (line,) = [line for line in validated.out.splitlines() if line.startswith(f"{task}: ")]
        assert "all images decode" in line, line
    check_done([validated, ran])
    sources = json.loads(output.read_text(encoding="utf-8"))["datasets"]
    commits = {}
    for subset, (_, commit) in SUGARCREPE.items():
        commits[f"sugarcrepe_{subset}"] = commit or made_up_commit(f"HuggingFaceM4/SugarCrepe_{subset}")
    commits |= {task: made_up_commit("ServiceNow/whatsup_all") for task in TASKS if task.startswith("whatsup")}
    commits["colorswap"] = made_up_commit("stanfordnlp/colorswap")
    commits["winoground"] = "b400e173549071916ad1b3d449293bc8d8b4b763"
    commits["mmvp_vlm"] = "211372d5357398f914d806d07dc305aea1f257d2"
    assert {task: source["revision"] for task, source in sources.items()} == commits


@pytest.mark.parametrize("token", [None, STRANGER, "hf_nobody"])
def test_a_gated_dataset_says_what_to_do(hub, tmp_path, token):
    commands = ["download colorswap", f"--model tiny-clip {RAW}"]
    for one in run_commands(commands, hub.environment(tmp_path, token), tmp_path):
        assert one.code == 4, one
        said = one.out + one.err
        assert "Traceback" not in said
        if token != "hf_nobody":
            assert "accept its terms at https://huggingface.co/datasets/stanfordnlp/colorswap and set HF_TOKEN" in said


def test_a_hub_that_falters_is_asked_again(hub, tmp_path):
    hub.misbehave("/api/models/openai/clip-vit-base-patch32", 429)
    hub.misbehave("/api/datasets/MMVP/MMVP_VLM/tree", 500)
    hub.misbehave("resolve/", 500, times=3, every=40)
    hub.misbehave("model.safetensors", 429)
    hub.misbehave("/storage/", after=4_000_000)
    hub.misbehave("Questions.csv", 503)
    (done,) = run_commands(
        ["download --model clip-b32 --tasks mmvp_vlm"], hub.environment(tmp_path), tmp_path, timeout=300
    )
    assert [one.status for one in hub.log if one.status in (429, 500, 503)] and not any(
        fault.times for fault in hub.faults if fault.every == 1
    ), hub.faults
    check_done([done])
    (weights,) = (tmp_path / "hf").rglob("snapshots/*/model.safetensors")
    original = hub.root / "models" / CLIP / weights.parent.name / "model.safetensors"
    assert weights.read_bytes() == original.read_bytes()
