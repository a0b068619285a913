"""What adapters are given in tests, and how what they train is compared with the model's own training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import ttmbench
from support.rounding import bound
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import find_task
from ttmbench.plugins.registry import build_registry
from ttmbench.types import Group

CAPTIONS = ["a red circle", "two dogs and a blue square on the left of a yellow star", "the cat"]


def random_images(count: int = 3, size: tuple[int, int] = (50, 40)) -> list[Image.Image]:
    rng = np.random.RandomState(3)
    return [Image.fromarray(rng.randint(0, 256, (size[1], size[0], 3), dtype=np.uint8)) for _ in range(count)]


class Reduced:
    """Is pickled as a call, and what is set on its result."""

    def __init__(self, *reduced: object) -> None:
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def groups_of(task: str, limit: int) -> list[Group]:
    registry = build_registry()
    return load_task_data(registry, find_task(registry, task), limit=limit).groups


def logits_of(adapter, images=None, captions=CAPTIONS) -> torch.Tensor:
    images = random_images() if images is None else images
    with torch.no_grad():
        return adapter.logits(
            adapter.encode_images(adapter.prepare_images(images)),
            adapter.encode_captions(adapter.prepare_captions(captions)),
        )


def pooled_of(output: object) -> torch.Tensor:
    """The features in what a tower returns, which transformers 4 returns as they are."""
    return getattr(output, "pooler_output", output)


def one_step(adapter) -> None:
    optimizer = torch.optim.SGD(adapter.parameters(), lr=0.1)
    adapter.matching_loss(adapter.prepare_images(random_images()), adapter.prepare_captions(CAPTIONS)).backward()
    optimizer.step()


def assert_same_gradients(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    """Of parameters by name, after a backward pass of both; only rounding may lie between them."""
    expected = {name: parameter.grad for name, parameter in reference.named_parameters() if parameter.grad is not None}
    allowed = bound(reference, max(gradient.abs().max() for gradient in expected.values()), passes=2)
    found = {name: parameter.grad for name, parameter in model.named_parameters() if name in expected}
    assert found.keys() == expected.keys() and len(found) > 20
    for name, gradient in found.items():
        assert torch.allclose(gradient, expected[name], atol=allowed, rtol=0), name


@lru_cache(maxsize=2)
def own_model(folder):
    """An image-text-to-text model and its processor as transformers loads them."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    return AutoModelForImageTextToText.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)


def knowing_options(folder: Path, target: Path) -> Path:
    """A copy of a tiny model in whose vocabulary some words are the options of forced choices."""
    shutil.copytree(folder, target)
    file = target / "tokenizer.json"
    words = json.loads(file.read_text(encoding="utf-8"))
    named = dict(zip(("dogs", "cat", "en", "is"), ("A", "B", "first", "second"), strict=True))
    words["model"]["vocab"] = {named.get(word, word): at for word, at in words["model"]["vocab"].items()}
    file.write_text(json.dumps(words), encoding="utf-8")
    return target


def chat_inputs(processor, image, text, prefix):
    """The processor's inputs for one turn with an image and a text; ``prefix`` is for PaliGemma, without a template."""
    if processor.chat_template:
        content = [{"type": "image"}, *([{"type": "text", "text": text}] if text else [])]
        prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    else:
        prompt = f"<image>{prefix}{text}"
    inputs = dict(processor(text=prompt, images=[image], return_tensors="pt"))
    inputs.pop("labels", None)
    return inputs


def with_tokens(inputs, ids):
    """Inputs with tokens of the model's own text behind the prompt."""
    more = torch.tensor([list(ids)], dtype=torch.long)
    values = {"input_ids": more, "attention_mask": torch.ones_like(more), "token_type_ids": torch.ones_like(more)}
    values["mm_token_type_ids"] = torch.zeros_like(more)
    return inputs | {key: torch.cat([inputs[key], value], dim=1) for key, value in values.items() if key in inputs}


def quick_scores(model, task, *, limit=2, batch_size="auto", dtype="fp32", **model_args):
    """Raw scores [groups, images, captions] of a short run, and the run; of a model by name, or of an adapter."""
    arguments = {name: str(value) if name == "pretrained" else value for name, value in model_args.items()}
    usual = {"bootstrap_iters": 0, "device": "cpu", "limit": limit, "batch_size": batch_size, "dtype": dtype}
    run = ttmbench.simple_evaluate(model, task, model_args=arguments, **usual)
    return run.scores[task]["none"][0].groups, run


def assert_captions_shift(adapter, embedding: torch.nn.Embedding, captions: list[str], own: list[range]) -> None:
    """A shift of captions' embeddings gives the features of captions whose first tokens were given new embeddings.

    ``own`` are the positions of each caption's own tokens. A shift of zeros changes no bit.
    """
    prepared, width = adapter.prepare_captions(captions), embedding.weight.shape[1]
    shift = torch.randn(4, width, generator=torch.Generator().manual_seed(7)) * embedding.weight.detach().std()
    zero = torch.zeros(4, width, requires_grad=True)
    assert adapter.caption_width == width
    with torch.no_grad():
        plain = adapter.encode_captions(prepared)
        assert torch.equal(adapter.encode_shifted_captions(prepared, zero), plain)
        found = adapter.encode_shifted_captions(prepared, shift)
        assert torch.equal(adapter.encode_captions(prepared), plain), "the shift is gone"
    with_gradient = adapter.encode_shifted_captions(prepared, zero)
    # torch has other code for attention where nothing needs a gradient.
    assert torch.equal(with_gradient, adapter.encode_captions(prepared))
    with_gradient.sum().backward()
    assert zero.grad is not None and (zero.grad != 0).any(dim=1).all()
    ids = prepared if isinstance(prepared, torch.Tensor) else prepared["input_ids"]
    unused = sorted(set(range(embedding.num_embeddings)) - set(ids.flatten().tolist()))[:4]  # below the end of text
    weights, state = embedding.weight, embedding.weight.detach().clone()
    for caption, positions, features in zip(range(len(captions)), own, found, strict=True):
        changed = ids[caption : caption + 1].clone()
        with torch.no_grad():
            for number, (position, new) in enumerate(zip(positions, unused, strict=False)):
                weights[new] = state[changed[0, position]] + shift[number]
                changed[0, position] = new
            one = changed
            if not isinstance(prepared, torch.Tensor):
                one = {name: rows[caption : caption + 1] for name, rows in prepared.items()} | {"input_ids": changed}
            torch.testing.assert_close(adapter.encode_captions(one)[0], features, atol=1e-5, rtol=0)
            weights.copy_(state)


@contextmanager
def double_masks() -> Iterator[None]:
    """For a model in float64: transformers 4 makes attention masks with its smallest number in the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
