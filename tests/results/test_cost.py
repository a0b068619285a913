"""What results cost: seconds, speed and memory in documents."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from support import tiny_models

import ttmbench
from ttmbench.model_adapters import choice, visualgpt, vqascore

RUN = {"limit": 8, "device": "cpu", "bootstrap_iters": 0}


def test_a_run_records_rates_that_are_counts_over_the_seconds_of_scoring():
    done = ttmbench.simple_evaluate("tiny-clip", ["shapes_color", "shapes_retrieval"], use_cache="off", **RUN)
    used, seconds = done["efficiency"], {task: done["timing"][task]["score"] for task in done.results}
    counts = {
        task: {name: round(used[task][f"{name}_per_second"] * seconds[task]) for name in ("images", "pairs")}
        for task in used
    }
    assert counts["shapes_color"] == {"images": 16, "pairs": 32}
    images, captions = done["datasets"]["shapes_retrieval"]["shape"]
    assert counts["shapes_retrieval"] == {"images": images, "pairs": images * captions}


def test_scores_of_the_cache_have_no_rate(tmp_path):
    for rates in (2, 0):
        done = ttmbench.simple_evaluate("tiny-clip", "shapes_color", use_cache=str(tmp_path), **RUN)
        assert sum(name.endswith("_per_second") for name in done.get("efficiency", {}).get("shapes_color", {})) == rates


@pytest.mark.parametrize("kind", ["vqascore", "visualgpt", "choice"])
def test_the_tokens_that_a_chat_model_reads_are_counted(tmp_path, kind):
    adapter = {"vqascore": vqascore, "visualgpt": visualgpt, "choice": choice}[kind].load(
        pretrained=str(tiny_models.chat(tmp_path, "llava")), device="cpu"
    )
    done = ttmbench.simple_evaluate(adapter, "shapes_color", limit=2, bootstrap_iters=0, use_cache="off")
    used, seconds = done["efficiency"]["shapes_color"], done["timing"]["shapes_color"]["score"]
    assert round(used["tokens_per_second"] * seconds) == adapter.tokens_read > 0
    if kind == "vqascore":  # what both prompts of an image begin with is read once
        shown, prompts = adapter.prepare_images([Image.new("RGB", (32, 32))]), ["red", "a red ball"]
        before, prompts = adapter.tokens_read, adapter.prepare_captions(prompts)
        with torch.inference_mode():
            adapter.score_prepared(2 * adapter.encode_images(shown), prompts)
        rows = [adapter.chat.row(shown[0], prompt)["input_ids"] for prompt in prompts]
        saved = sum(map(len, rows)) - (adapter.tokens_read - before)
        of_image = int((rows[0] == adapter.model.config.image_token_id).sum())
        assert of_image < saved < min(map(len, rows))
