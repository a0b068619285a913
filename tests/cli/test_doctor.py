"""``ttmbench doctor``: what is here, what is not, and what mends it; without the network and without a secret."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from ttmbench._util.machine import installed_version
from ttmbench.cli import main
from ttmbench.cli.doctor import check_model, check_task
from ttmbench.data.task_file import find_task
from ttmbench.plugins.registry import build_registry
from ttmbench.types import AdapterSpec

HF = "ttmbench.model_adapters.hf:load"
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No network, no token, empty caches."""
    import datasets
    from huggingface_hub import constants

    def refuse(*_, **__):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "prepared"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "TTMBENCH_DATA"):
        monkeypatch.delenv(name, raising=False)


def run(capsys, *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def cached(tmp_path: Path, repository: str, *names: str) -> Path:
    """A repository in the hub's cache."""
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(SHA, encoding="utf-8")
    for name in names:
        file = folder / "snapshots" / SHA / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}", encoding="utf-8")
    return folder / "snapshots" / SHA


def adapter(**arguments: object) -> AdapterSpec:
    return AdapterSpec("mine", HF, model_args=arguments)


def test_without_names_it_lists_what_is_here(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "doctor", "--data_dir", tmp_path / "data")
    assert code == 0 and err == ""
    lines, words = out.splitlines(), re.split(r"[\s,]+", out)
    assert max(map(len, lines)) <= 80 and ".." not in out, "nothing is cut"
    assert {"shapes_color", "tiny-clip"} <= set(words) and "winoground" not in words
    assert re.search("^[0-9]+ other tasks and models: `ttmbench doctor NAME`", out, re.M)
    for word in ("python", "torch", "transformers", "open_clip_torch", "datasets", "devices", "hub cache", "free"):
        assert word in out
    assert f"{tmp_path / 'data'}(doesnotexistyet)" in "".join(words) and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--tasks", "shapes_place,shapes_color"], 0, "drawn on this machine"),
        (["--tasks", "shapes_*", "--models", "tiny-clip,tiny-clip-seed1"], 0, "present"),
        (
            ["--tasks", "shapes_place", "--models", "siglip-b16"],
            4,
            "it is not in the hub cache at revision 7fd15f0689c7 -> ttm",
        ),
        (["--models", "hf"], 4, "unknown"),
        (["shapes_color"], 0, "drawn on this machine"),
        (["shapes_place", "tiny-clip,mmvp_vlm"], 4, "ttmbench download mmvp_vlm"),
    ],
)
def test_what_is_asked_for_decides_the_exit_code(capsys, words, code, said):
    got, out, err = run(capsys, "doctor", *words)
    assert got == code and said in out and ("unavailable: " in err) is (code == 4)


def test_unknown_names_are_usage_errors(capsys):
    for words in (["--tasks", "shape_place"], ["--models", "tiny-clap"], ["tiny-clap"]):
        code, out, err = run(capsys, "doctor", *words)
        assert (code, out) == (2, "") and "did you mean" in err


def test_json(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1073741824")
    code, out, _ = run(capsys, "doctor", "--json", "--tasks", "winoground,shapes_place")
    document = json.loads(out)
    assert code == 4 and [one["state"] for one in document["findings"]] == ["gated", "present"]
    assert document["HF_TOKEN"] is False and document["packages"]["torch"] and document["devices"][0] == "cpu"
    assert document["allocator"] == {"MALLOC_TRIM_THRESHOLD_": "1073741824"}
    assert document["folders"]["hub cache"]["path"] == str(tmp_path / "hub")


def test_a_token_is_never_shown(capsys, tmp_path, monkeypatch):
    _, without, _ = run(capsys, "doctor", "--tasks", "winoground")
    assert "not set" in without and "accept the terms at https://huggingface.co/datasets/facebook/winoground" in without
    assert "set HF_TOKEN" in without and "then `ttmbench download winoground`" in without
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    for words in ([], ["--json"], ["--tasks", "winoground"]):
        _, out, err = run(capsys, "doctor", *words)
        assert "secret" not in out + err
    assert re.search("HF_TOKEN +set$", out, re.MULTILINE) and "set HF_TOKEN to" not in out
    monkeypatch.delenv("HF_TOKEN")


def test_a_task_says_what_is_missing_where_and_what_mends_it(tmp_path):
    registry = build_registry()
    data = tmp_path / "data"
    found = check_task(registry, find_task(registry, "sugarcrepe_swap_obj"), data)
    assert found.state == "missing" and found.fix == "ttmbench download sugarcrepe_swap_obj"
    assert found.detail.startswith(f"needs sugarcrepe/swap_obj.json, coco/val2017 in {data}; or dataset Hugging")
    (data / "sugarcrepe").mkdir(parents=True)
    (data / "sugarcrepe" / "swap_obj.json").write_text("{}", encoding="utf-8")
    (data / "coco" / "val2017").mkdir(parents=True)
    found = check_task(registry, find_task(registry, "sugarcrepe_swap_obj"), data)
    assert "coco/val2017 (the folder is empty)" in found.detail
    (data / "coco" / "val2017" / "1.jpg").write_bytes(b"")
    found = check_task(registry, find_task(registry, "sugarcrepe_swap_obj"), data)
    assert (found.state, found.detail, found.fix) == ("present", f"the data folder in {data}", "")


def test_a_model_in_the_cache(tmp_path):
    assert check_model(adapter(pretrained="me/model")).state == "missing"
    folder = cached(tmp_path, "me/model", "model.safetensors")
    found = check_model(adapter(pretrained="me/model"))
    assert found.state == "missing" and "incomplete: missing config.json" in found.detail
    assert found.fix == "ttmbench download --model mine"
    cached(tmp_path, "me/model", "config.json")
    found = check_model(adapter(pretrained="me/model"))
    assert found.state == "present" and found.detail == f"me/model at {SHA[:8]} in {folder}"
    assert check_model(adapter(pretrained="me/model", revision="f" * 40)).state == "missing"
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert check_model(adapter(pretrained="me/model")).state == "present"


def test_a_model_whose_extra_is_not_installed_is_missing(monkeypatch):
    def absent(name: str) -> str | None:
        return None if name == "openai" else installed_version(name)

    model = AdapterSpec("served", "ttmbench.model_adapters.openai:load", needs=("ttmbench[api]",))
    assert check_model(model).state != "missing"
    monkeypatch.setattr("ttmbench.cli.doctor.installed_version", absent)
    found = check_model(model)
    assert found.state == "missing" and found.fix == "pip install 'ttmbench[api]'"
    assert check_model(AdapterSpec("acme", "acme.model:load", needs=("torch", "open_clip_torch"))).state == "unknown"


def test_a_registered_model_in_the_cache(tmp_path, capsys):
    folder = cached(tmp_path, "openai/clip-vit-base-patch32", "model.safetensors", "config.json")
    code, out, _ = run(capsys, "doctor", "--models", "clip-b32", "--tasks", "shapes_place")
    assert code == 4 and "at revision c237dc49" in out, "what is there is not the commit that the name pins"
    folder.rename(folder.with_name(build_registry().adapters["clip-b32"].model_args["revision"]))
    code, out, _ = run(capsys, "doctor", "--models", "clip-b32", "--tasks", "shapes_place")
    assert code == 0 and "openai/clip-vit-base-patch32 at c237dc49 in" in out
