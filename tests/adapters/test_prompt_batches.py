"""What the prompts of an image share is computed once: how much work is left, and which prompts go together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.stand_in_gpu import stand_in_gpu

from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_task_data
from ttmbench.model_adapters import vqascore
from ttmbench.model_adapters._shared.prompt_batches import by_prefix
from ttmbench.plugins.registry import build_registry

IMAGE = 9


def prompts(images: int, captions: int, image_tokens: int = 576, before: int = 5, asked: int = 30, words: int = 25):
    """Tokens of every image with every caption, as LLaVA-1.5 has them: 576 of the image, some 60 of the text."""
    rng, rows = np.random.default_rng(0), []
    shared, end = rng.integers(10, 99, asked - 8), rng.integers(10, 99, 8)
    texts = [rng.integers(100, 999, words + index) for index in range(captions)]  # of several lengths
    for _ in range(images):
        for text in texts:
            parts = [np.arange(before), np.full(image_tokens, IMAGE), shared[:8], text, shared[8:], end]
            rows.append(torch.from_numpy(np.concatenate(parts)))
    return [image for image in range(images) for _ in range(captions)], rows


def computed(images, rows) -> int:
    """Tokens that go through the language model, of which each image's shared ones go once."""
    total = 0
    for members, length in by_prefix(images, rows, [torch.tensor([len(row) - 1]) for row in rows], IMAGE):
        total += len({images[at] for at in members}) * length
        total += len(members) * (max(len(rows[at]) for at in members) - length)  # padded
    return total


@pytest.mark.parametrize(("images", "captions", "most"), [(2, 2, 0.6), (1, 4, 0.4), (1, 2, 0.6), (2, 1, 1.0)])
def test_an_image_is_computed_once_for_its_captions(images, captions, most):
    owners, rows = prompts(images, captions)
    assert computed(owners, rows) <= most * len(rows) * max(map(len, rows))


def test_what_differs_before_the_image_or_is_asked_for_is_not_shared():
    ids = [torch.tensor(row) for row in ([1, IMAGE, IMAGE, 2, 3, 4], [1, IMAGE, IMAGE, 2, 5], [7, IMAGE, IMAGE, 2, 3])]
    last = [torch.tensor([len(row) - 1]) for row in ids]
    assert by_prefix("aab", ids, last, IMAGE) == [([0, 1], 4), ([2], 0)]
    assert by_prefix("aaa", ids, last, IMAGE) == [([0, 1, 2], 0)], "the last says something else before the image"
    early = [torch.tensor([3, 4]), *last[1:]]
    assert by_prefix("aab", ids, early, IMAGE) == [([0, 1], 3), ([2], 0)], "logits after token 3 are asked for"
    longer = [torch.tensor([1, IMAGE, 2, 3]), torch.tensor([1, IMAGE, 2, 4]), *ids[:2]]
    kept = [torch.tensor([len(row) - 1]) for row in longer]
    assert by_prefix("aabb", longer, kept, IMAGE) == [([0, 1], 3), ([2, 3], 4)], "images of several sizes apart"


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_a_batch_computes_what_its_prompts_share_once_and_waits_for_the_device_once(kind, tiny_vlm):
    """Beside the model's own waits, which a pass of a text alone has too."""
    registry, seen = build_registry(), []
    groups = load_task_data(registry, find_task(registry, "shapes_color"), limit=2).groups
    pairs = [(image.open(), caption) for group in groups for image in group.images for caption in group.captions]
    folder = str(tiny_vlm("chat", kind=kind))
    with stand_in_gpu() as gpu, torch.no_grad():
        adapter = vqascore.load(pretrained=folder, device="cuda")
        images = adapter.prepare_images([image for image, _ in pairs[::2]])
        encoded = adapter.encode_images([image for image in images for _ in range(2)])
        asked = adapter.prepare_captions([caption for _, caption in pairs])
        lengths = [
            len(adapter.chat.row(image, prompt)["input_ids"]) for (image, _), prompt in zip(encoded, asked, strict=True)
        ]
        adapter.model.model.language_model.register_forward_pre_hook(
            lambda _, args, given: seen.append(given["inputs_embeds"].shape[:2]), with_kwargs=True
        )
        together = adapter.score_prepared(encoded, asked)
        (images, shared), (captions, rest) = seen
        assert (images, captions, shared + rest) == (4, 8, max(lengths))
        alone = [adapter.score_prepared([image], [prompt]) for image, prompt in zip(encoded, asked, strict=True)]
        assert [length for _, length in seen[2:]] == lengths, "an image with one caption is computed at once"
        np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-4)
        text = torch.ones(2, 3, dtype=torch.long).to("cuda", non_blocking=True)
        gpu.waits = 0
        adapter.model(input_ids=text, attention_mask=text, use_cache=True)
        own, gpu.waits = gpu.waits, 0
        adapter.score_prepared(encoded, asked)
        if kind == "llava":  # Qwen's positions are computed with waits of their own
            assert gpu.waits <= 2 * own + 2, "two passes; the scores, and what counts the image's placeholders"
