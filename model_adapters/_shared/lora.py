"""Low-rank adaptation (arXiv:2106.09685) through peft: two small factors beside a weight are trained in its place."""

from __future__ import annotations

from typing import Any

import torch

from ttmbench.errors import UsageError


def add_lora(model: Any, rank: int, targets: str) -> None:
    """Adds factors to a model in place; nothing else stays trainable, and no score changes.

    They are drawn from a stream of their own, so that the same model gets the same ones whatever was drawn before.

    Args:
        model: of transformers.
        rank: of the factors; their product is scaled by 2, that is ``lora_alpha = 2 rank``.
        targets: regular expression for the full names of the layers.

    Raises:
        UsageError: peft is not installed, or no layer has such a name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UsageError("lora needs the package peft; pip install 'ttmbench[lora]'") from None
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=targets)
    device = next(model.parameters()).device
    try:
        with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
            torch.manual_seed(0)
            inject_adapter_in_model(config, model)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"lora_targets={targets} fits no layer of {type(model).__name__} ({reason})") from None
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """The weights of the model as if it had no factors: each product added to the weight it stands beside."""
    state = {
        name.replace(".base_layer", ""): tensor for name, tensor in model.state_dict().items() if "lora_" not in name
    }
    for name, module in model.named_modules():
        if hasattr(module, "get_delta_weight"):
            weight = state[f"{name}.weight"]
            state[f"{name}.weight"] = weight + module.get_delta_weight("default").to(weight.dtype)
    return state
