"""What adapters are given in tests, and how what they train is compared with the model's own training."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from support.rounding import bound
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_groups
from ttmbench.plugins.registry import build_registry
from ttmbench.types import Group

CAPTIONS = ["a red circle", "two dogs and a blue square on the left of a yellow star", "the cat"]


def random_images(count: int = 3, size: tuple[int, int] = (50, 40)) -> list[Image.Image]:
    rng = np.random.RandomState(3)
    return [Image.fromarray(rng.randint(0, 256, (size[1], size[0], 3), dtype=np.uint8)) for _ in range(count)]


def groups_of(task: str, limit: int) -> list[Group]:
    registry = build_registry()
    return load_groups(registry, find_task(registry, task), limit=limit)


def logits_of(adapter, images=None, captions=CAPTIONS) -> torch.Tensor:
    images = random_images() if images is None else images
    with torch.no_grad():
        return adapter.logits(
            adapter.encode_images(adapter.prepare_images(images)),
            adapter.encode_captions(adapter.prepare_captions(captions)),
        )


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
