"""Chat models in vLLM's engine: scores are those of transformers, and the engine is asked so that it can reuse."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from support import stand_in_vllm
from support.adapter_inputs import knowing_options, quick_scores

from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.model_adapters import vllm
from ttmbench.plugins.registry import build_registry

KINDS = ("llava", "qwen2_vl", "smolvlm", "internvl")
ROUNDING = 1e-4  # as between a batch and the model's own forward (test_vqascore.py): logits are of the order of 1


@pytest.fixture
def engines(monkeypatch):
    return stand_in_vllm.install(monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("vqascore", {}),
        ("vqascore", {"score": "yes_and_end"}),
        ("visualgpt", {"end_token": True}),
    ],
)
def test_scores_are_those_of_transformers(kind, model, arguments, tiny_vlm, engines):
    folder = tiny_vlm("chat", kind=kind)
    expected, _ = quick_scores(model, "shapes_color", pretrained=folder, **arguments)
    found, run = quick_scores("vllm", "shapes_color", pretrained=folder, scorer=model, **arguments)
    np.testing.assert_allclose(found, expected, atol=ROUNDING, rtol=0)
    assert np.ptp(expected) > 10 * ROUNDING
    declared = run["model_info"]["fingerprint"]
    assert (declared["engine"], declared["dtype"], declared["scorer"]) == ("vllm 0.30.0", "float32", model)
    reads = [output.num_cached_tokens for output in engines[0].outputs]
    if model == "vqascore":  # the second caption of an image begins as the first one
        half = len(reads) // (2 if arguments else 1)
        assert all(np.array(reads[1:half:2]) > 0) and all(count > 0 for count in reads[half:])
    else:
        assert not any(reads), "vLLM stores no log-probabilities, so it computes the prompt again"


def test_answers_name_options_alone_unless_the_model_may_write(tiny_vlm, tmp_path, engines):
    folder = knowing_options(tiny_vlm("chat", kind="llava", scale=18.0), tmp_path / "model")
    answers = {}
    for model, more in (
        ("vllm", "scorer=choice"),
        ("vllm", "scorer=choice,constrained=false"),
        ("choice", "constrained=true"),
    ):
        out = tmp_path / model / more / "x.json"
        arguments = f"pretrained={folder},max_tokens=3,{more}"
        words = ["--model", model, "--model_args", arguments, "--tasks", "shapes_color", "--limit", "2"]
        assert main([*words, "--bootstrap_iters", "0", "--log_samples", "-o", str(out)]) == 0
        (samples,) = out.parent.rglob("*.jsonl")
        asked = [one for line in samples.read_text().splitlines() for one in json.loads(line)["answers"]]
        answers[model, more] = [(one["question"].split()[0], one["answer"]) for one in asked]
    named, written, chosen = answers.values()
    options = {"image": {"A", "B"}, "caption": {"first", "second"}}  # by what the question is about
    assert all(answer in options[about] for about, answer in named)
    assert len({answer for _, answer in named}) > 2 and named == chosen, "transformers chooses the same in one pass"
    assert not all(answer in options[about] for about, answer in written)


def test_what_trains_is_refused_before_the_engine_starts(tiny_vlm, engines, capsys):
    folder = tiny_vlm("chat", kind="llava")
    asked = ["--model", "vllm", "--model_args", f"pretrained={folder}", "--tasks", "shapes_color", "--limit", "2"]
    for stage in (["--ttm"], ["--methods", "tent"]):
        assert main([*asked, *stage]) == 2
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ttmbench")]
        assert len(said) == 1 and "vllm" in said[0], said
    assert "no gradients" in vllm.EngineModel.untrainable and engines == []


def test_the_engine_gets_what_was_asked_for(tiny_vlm, engines):
    folder = tiny_vlm("chat", kind="llava")
    more = {"tensor_parallel_size": 2, "max_model_len": 200, "engine": {"enforce_eager": True}}
    _, run = quick_scores("vllm", "shapes_color", pretrained=folder, limit=1, dtype="bf16", **more)
    expected = {"dtype": "bfloat16", "tensor_parallel_size": 2, "max_model_len": 200, "enforce_eager": True}
    assert engines[0].arguments == {
        **{"trust_remote_code": False, "enable_prefix_caching": True, "gpu_memory_utilization": 0.9, "seed": 0},
        **expected,
    }
    assert run["model_info"]["fingerprint"]["weights"] == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"device": "cuda:1"}, "CUDA_VISIBLE_DEVICES"),
        ({"dtype": "tf32"}, "weights_dtype=fp32"),
        ({"peft": "x"}, "merge the adapter"),
        ({"engine": {"model": "x"}}, "engine.model is set"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be"),
        ({"template": "is it?"}, "has no {caption}"),
        ({"scorer": "clip"}, "scorer must be vqascore, visualgpt or choice"),
    ],
)
def test_wrong_arguments_are_one_clear_error(arguments, says, tiny_vlm, engines):
    with pytest.raises(UsageError, match=says):
        vllm.load(pretrained=str(tiny_vlm("chat", kind="llava")), **arguments)


def test_a_missing_package_is_the_command_that_installs_it(tiny_vlm, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UsageError, match=r"pip install 'ttmbench\[vllm\]'"):
        make_adapter(build_registry(), "vllm", {"pretrained": str(tiny_vlm("chat", kind="llava"))}, {})


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), UsageError, "gpu_memory_utilization"),
        (ValueError("No available memory for the cache blocks."), UsageError, "max_model_len"),
        (ValueError("Model architectures ['X'] are not supported for now."), UsageError, "--model vqascore"),
        (RuntimeError("boom"), DataError, "boom"),
    ],
)
def test_an_engine_that_does_not_start_is_one_line(error, kind, says, tiny_vlm, monkeypatch):
    def fails(*_, **__):
        raise error

    stand_in_vllm.install(monkeypatch, engine=fails)
    adapter = vllm.load(pretrained=str(tiny_vlm("chat", kind="llava")))
    with pytest.raises(kind, match=says) as caught:
        adapter.engine.generate([], [])
    assert "\n" not in str(caught.value)


def test_a_prompt_that_is_too_long_names_the_setting(tiny_vlm, engines):
    with pytest.raises(UsageError, match="a larger max_model_len"):
        quick_scores("vllm", "shapes_color", pretrained=tiny_vlm("chat", kind="llava"), limit=1, max_model_len=8)


def test_a_model_without_a_chat_template_is_refused(tiny_vlm, engines):
    with pytest.raises(UsageError, match="has no chat template"):
        vllm.load(pretrained=str(tiny_vlm("chat", kind="paligemma")))
