"""Low-rank updates: no effect at first, only they are trained, and the model is as before afterwards."""

from __future__ import annotations

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from support import tiny_models
from support.adapter_inputs import random_images
from support.training_tasks import load, training_task

from ttmbench.errors import UsageError
from ttmbench.methods.parameters import Train, add_low_rank, remove_low_rank
from ttmbench.model_adapters import itc, open_clip


@pytest.fixture
def adapter(tiny_hf_clip):
    return load(tiny_hf_clip)


def encoded(adapter):
    task = training_task(adapter)
    return adapter.encode_images(task._prepared.images), adapter.encode_captions(task._prepared.captions)


def test_queries_and_values_of_both_towers(adapter):
    state, before = {name: tensor.clone() for name, tensor in adapter.state_dict().items()}, encoded(adapter)
    parameters = add_low_rank(adapter, 3)
    towers = [f"{side}_model.encoder.layers.{block}.self_attn" for side in ("text", "vision") for block in range(2)]
    names = {f"{one}.{layer}_proj.lora_{part}" for one in towers for layer in "qv" for part in "ab"}
    assert set(parameters) == names
    assert {tuple(one.shape) for one in parameters.values()} == {(3, 32), (32, 3)}
    assert all(map(torch.equal, encoded(adapter), before)), "no effect at first"
    layer = adapter.model.vision_model.encoder.layers[1].self_attn.q_proj
    up, down = (parameters[f"vision_model.encoder.layers.1.self_attn.q_proj.lora_{part}"] for part in "ba")
    with torch.no_grad():
        up.normal_()
        x = torch.randn(5, 32)
        expected = x @ (layer.weight + 2 * up @ down).T + layer.bias
        torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(encoded(adapter)[0], before[0], atol=1e-4)
    assert adapter.state_dict().keys() == state.keys(), "names stay as they are while updates are there"
    remove_low_rank(adapter)
    assert all(map(torch.equal, encoded(adapter), before))
    assert all(torch.equal(value, state[name]) for name, value in adapter.state_dict().items())


def test_the_first_draw_is_the_same_in_every_run_and_another_for_each_layer(adapter):
    first, second = add_low_rank(adapter, 2), add_low_rank(adapter, 2)
    assert all(torch.equal(first[name], second[name]) and first[name] is not second[name] for name in first)
    drawn = [tuple(value.flatten().tolist()) for name, value in first.items() if name.endswith("lora_a")]
    assert len(set(drawn)) == len(drawn) == 8
    hooks = [len(module._forward_hooks) for module in adapter.model.modules()]
    assert max(hooks) == 1, "updates are replaced, not added up"


def test_what_bert_calls_its_layers(tmp_path):
    model = itc.load(pretrained=str(tiny_models.flava(tmp_path / "flava")), device="cpu", dtype="fp32")
    names = set(add_low_rank(model, 2))
    assert len(names) == 2 * 2 * 2 * 2 and not any("multimodal" in name for name in names)


@pytest.fixture(scope="module", params=["open_clip", "open_clip_siglip"])
def fused(request, tiny_vlm):
    """A model whose layers make queries, keys and values by one matrix: attention of torch's, or timm's ``qkv``."""
    return open_clip.load(model=f"local-dir:{tiny_vlm(request.param)}", device="cpu")


def inputs_of(model):
    return model.prepare_images(random_images()), model.prepare_captions(["a red circle", "a cat", "two dogs"])


def features_of(model, train=False):
    sides = (model.train_images, model.train_captions) if train else (model.encode_images, model.encode_captions)
    return [encode(inputs).detach() for encode, inputs in zip(sides, inputs_of(model), strict=True)]


def test_slices_of_fused_matrices(fused):
    before, state = features_of(fused), {name: tensor.clone() for name, tensor in fused.state_dict().items()}
    parameters = add_low_rank(fused, 3)
    of = {name.partition(".lora_")[0] for name in parameters}
    assert of == {name for name in state if name.endswith(("in_proj_weight", "qkv.weight"))}
    assert len(parameters) == 4 * len(of) and all(
        name.startswith(("visual", "image")) != name.startswith(("text", "transformer")) for name in of
    )
    assert all(map(torch.equal, features_of(fused), before)), "no effect at first"
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in parameters.items():
            if name.endswith("_b"):
                value.copy_(torch.randn(value.shape, generator=generator) / 10)
    found, trained = features_of(fused), features_of(fused, train=True)
    changed = dict(state)
    for name in of:
        q, v = (parameters[f"{name}.lora_{one}_b"] @ parameters[f"{name}.lora_{one}_a"] for one in "qv")
        changed[name] = state[name] + 2 * torch.cat([q, torch.zeros_like(q), v]).detach()
    assert fused.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in fused.state_dict().items()), "between two passes"
    remove_low_rank(fused)
    assert all(map(torch.equal, features_of(fused), before))
    fused.load_state_dict(changed)
    expected = features_of(fused)
    fused.load_state_dict(state)
    for one, other, there, plain in zip(found, trained, expected, before, strict=True):
        torch.testing.assert_close(one, there, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(other, there, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(there, plain, atol=1e-3)


def test_a_pass_that_fails_leaves_the_matrix_as_it_was(fused):
    weights = dict(fused.model.named_parameters())
    name = next(name for name in weights if name.endswith(("in_proj_weight", "qkv.weight")))
    add_low_rank(fused, 2)
    layer = fused.model.get_submodule(name.rpartition(".")[0].removesuffix(".qkv"))
    with pytest.raises((RuntimeError, TypeError, AssertionError)):
        layer(torch.zeros(1, 2, 5))  # of a width that it does not take
    assert dict(fused.model.named_parameters())[name] is weights[name]
    remove_low_rank(fused)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in fused.model.modules())


def test_a_compiled_model_is_refused(adapter):
    adapter._declared["compiled"] = True
    with pytest.raises(UsageError, match="cannot change a compiled model; run without --compile"):
        add_low_rank(adapter, 2)


@pytest.mark.parametrize("which", ["lora", "lora:0", "lora:x", "lora:2.5", "norms", "", "Norm", "context", "context:0"])
def test_an_unknown_set_is_refused_before_anything_runs(which):
    with pytest.raises(ValidationError, match=r"must be all, norm, norm_images, .* lora:RANK, context:TOKENS or shift"):
        TypeAdapter(Train).validate_python(which)
