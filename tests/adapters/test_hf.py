"""transformers models: scores, loss and gradient are those of the model's own forward; the contract holds."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.rounding import bound

from ttmbench.config import TTMConfig
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.adapters import model_info, remarks
from ttmbench.model_adapters import hf, tiny_clip
from ttmbench.scoring.capabilities import capabilities_of
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.testing import ContractError, check_adapter
from ttmbench.ttm.finetune import TrainingPairs, finetune, make_optimizer

CAPTIONS = ["a red circle", "two dogs and a blue square on the left of a yellow star", "the cat"]


def random_images(count=3, size=(50, 40)):
    rng = np.random.RandomState(3)
    return [Image.fromarray(rng.randint(0, 256, (size[1], size[0], 3), dtype=np.uint8)) for _ in range(count)]


@pytest.fixture(params=["siglip", "clip"])
def folder(request, tiny_siglip, tiny_hf_clip):
    return {"siglip": tiny_siglip, "clip": tiny_hf_clip}[request.param]


def own_forward(folder, **options):
    """The model's own pipeline: processor, forward, loss."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    padding = "max_length" if hasattr(model, "logit_bias") else True
    texts = tokenizer(CAPTIONS, padding=padding, return_tensors="pt")
    images = AutoImageProcessor.from_pretrained(folder)(images=random_images(), return_tensors="pt")
    return model, model(**texts, **images, **options)


def test_logits_equal_the_models_own(folder):
    adapter = hf.load(pretrained=str(folder), device="cpu")
    with torch.no_grad():
        _, expected = own_forward(folder)
        found = adapter.logits(
            adapter.encode_images(adapter.prepare_images(random_images())),
            adapter.encode_captions(adapter.prepare_captions(CAPTIONS)),
        )
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected.logits_per_image, atol=1e-4, rtol=0)


def test_loss_and_gradient_equal_the_models_own(folder):
    adapter = hf.load(pretrained=str(folder), device="cpu")
    loss = adapter.matching_loss(adapter.prepare_images(random_images()), adapter.prepare_captions(CAPTIONS))
    loss.backward()
    model, output = own_forward(folder, return_loss=True)
    output.loss.backward()
    assert float(loss.detach()) == pytest.approx(float(output.loss.detach()), abs=1e-4)
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    allowed = bound(model, max(gradient.abs().max() for gradient in expected.values()), passes=2)
    compared = 0
    for name, parameter in adapter.model.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(parameter.grad, expected[name], atol=allowed, rtol=0), name
            compared += 1
    assert compared > 20


def test_adapters_keep_the_contract(folder):
    made = check_adapter(hf.load(pretrained=str(folder), device="cpu"))
    assert "batch size changes no score" in made and "the state comes back after training" in made


@pytest.mark.parametrize("seed", sorted(tiny_clip.FOLDERS))
def test_the_built_in_models_keep_the_contract(seed):
    assert check_adapter(tiny_clip.load(training_seed=seed, device="cpu"))


def test_caption_padding_changes_no_clip_score(tiny_hf_clip):
    adapter = hf.load(pretrained=str(tiny_hf_clip), device="cpu")
    with torch.no_grad():
        together = adapter.encode_captions(adapter.prepare_captions(CAPTIONS))
        alone = torch.cat([adapter.encode_captions(adapter.prepare_captions([caption])) for caption in CAPTIONS])
    assert torch.allclose(together, alone, atol=bound(adapter.model, alone), rtol=0)


def test_bf16_scores_are_fp32_and_near(folder):
    images, captions = random_images(), CAPTIONS
    scores = {}
    for dtype in ("fp32", "bf16"):
        adapter = hf.load(pretrained=str(folder), device="cpu", dtype=dtype)
        with torch.no_grad():
            scores[dtype] = adapter.logits(
                adapter.encode_images(adapter.prepare_images(images)),
                adapter.encode_captions(adapter.prepare_captions(captions)),
            )
        assert scores[dtype].dtype == torch.float32
        assert all(parameter.dtype == torch.float32 for parameter in adapter.parameters())
    assert not torch.equal(scores["fp32"], scores["bf16"])
    assert torch.allclose(scores["fp32"], scores["bf16"], atol=0.3)


def test_damaged_weights_are_one_clear_error(tmp_path, tiny_hf_clip):
    folder = tmp_path / "broken"
    shutil.copytree(tiny_hf_clip, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot be loaded") as caught:
        hf.load(pretrained=str(folder), device="cpu")
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_refused(tmp_path, tiny_hf_clip):
    folder = tmp_path / "partial"
    shutil.copytree(tiny_hf_clip, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["visual_projection.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"visual_projection\.weight"):
        hf.load(pretrained=str(folder), device="cpu")


def test_a_model_that_is_nowhere_is_one_clear_error():
    with pytest.raises(DataError, match="is neither a folder here nor in"):
        hf.load(pretrained="nobody/no-such-model", device="cpu", offline=True)
    with pytest.raises(DataError, match="no name of a repository"):
        hf.load(pretrained="./no/such/folder", device="cpu")


class Program:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (open, (str(self.trace), "w"))


@pytest.fixture
def pickled(tmp_path, tiny_hf_clip):
    """The tiny CLIP as old repositories hold it: ``pytorch_model.bin``, with buffers that nothing needs any more."""
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_hf_clip, folder)
    tensors = load_file(folder / "model.safetensors")
    old = {"text_model.embeddings.position_ids": torch.arange(8)[None]}
    torch.save({**tensors, **old}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_a_pickle_is_read_as_tensors_alone(pickled, tiny_hf_clip):
    adapter, safe = hf.load(pretrained=str(pickled), device="cpu"), hf.load(pretrained=str(tiny_hf_clip), device="cpu")
    assert adapter.weights_sha256 == safe.weights_sha256
    said = model_info(capabilities_of(adapter))["source"]
    assert said == {"name": "pickled", "commit": None, "files": ["pytorch_model.bin"], "format": "pickle"}
    assert model_info(capabilities_of(safe))["source"]["format"] == "safetensors"
    assert "tensors alone are read" in remarks(adapter)[0] and not remarks(safe)
    with pytest.raises(DataError, match=r"pytorch_model\.bin and not as safetensors"):
        hf.load(pretrained=str(pickled), device="cpu", weights="safetensors")
    with pytest.raises(UsageError, match="weights must be auto or safetensors, got pickle"):
        hf.load(pretrained=str(pickled), device="cpu", weights="pickle")


def test_a_pickle_in_shards(pickled, tiny_hf_clip):
    tensors = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    names = sorted(tensors)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, some in halves.items():
        torch.save({name: tensors[name] for name in some}, pickled / file)
    where = {name: file for file, some in halves.items() for name in some}
    index = pickled / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")
    (pickled / "pytorch_model.bin").unlink()
    adapter = hf.load(pretrained=str(pickled), device="cpu")
    assert adapter.weights_sha256 == hf.load(pretrained=str(tiny_hf_clip), device="cpu").weights_sha256
    (pickled / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(DataError, match=r"lacks pytorch_model-00002-of-00002\.bin; copy it again"):
        hf.load(pretrained=str(pickled), device="cpu")
    for broken in ("[]", "{", '{"weight_map": 3}', '{"weight_map": {"x": "../../pytorch_model.bin"}}'):
        index.write_text(broken, encoding="utf-8")
        with pytest.raises(DataError):
            hf.load(pretrained=str(pickled), device="cpu")


def test_a_program_in_a_pickle_is_not_run(pickled, tmp_path):
    trace = tmp_path / "trace"
    torch.save({"logit_scale": Program(trace)}, pickled / "pytorch_model.bin")
    with pytest.raises(DataError, match="cannot be loaded") as caught:
        hf.load(pretrained=str(pickled), device="cpu")
    assert not trace.exists() and "\n" not in str(caught.value)
    assert "open" in str(caught.value) and "set to `False`" not in str(caught.value)


def test_a_missing_package_is_a_command_to_type(tiny_siglip, monkeypatch):
    from transformers import AutoTokenizer

    def lacking(*_, **__):
        raise ImportError("SiglipTokenizer requires the protobuf library but it was not found in your environment.")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lacking)
    with pytest.raises(DataError, match=r"needs packages that are not installed: `pip install '?protobuf"):
        hf.load(pretrained=str(tiny_siglip), device="cpu")


def test_a_model_of_open_clip_is_told_from_one_of_transformers(tmp_path):
    (tmp_path / "open_clip_pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match="--model open_clip --model_args model=local-dir:"):
        hf.load(pretrained=str(tmp_path), device="cpu")


def test_unknown_dtype_and_training_seed():
    with pytest.raises(UsageError, match="dtype"):
        hf.load(pretrained="x", dtype="int4")
    with pytest.raises(UsageError, match="training_seed"):
        tiny_clip.load(training_seed=9)


class BadPairs:
    """Scores that depend on the batch."""

    def fingerprint(self):
        return {}

    def score_pairs(self, images, captions):
        return np.arange(len(images), dtype=np.float32)


def test_check_adapter_catches_scores_that_depend_on_the_batch():
    with pytest.raises(ContractError, match="batch size"):
        check_adapter(BadPairs())


def test_check_adapter_catches_half_precision():
    class Half(BadPairs):
        def score_pairs(self, images, captions):
            return np.array([len(caption) for caption in captions], dtype=np.float16)

    with pytest.raises(ContractError, match="float32"):
        check_adapter(Half())


@pytest.mark.slow
def test_a_compiled_model_scores_and_trains_the_same(folder):
    plain, fast = (hf.load(pretrained=str(folder), device="cpu", compile=compile) for compile in (False, True))
    scores, losses = [], []
    for adapter in (plain, fast):
        images, captions = adapter.prepare_images(random_images()), adapter.prepare_captions(CAPTIONS)
        with torch.no_grad():
            scores.append(adapter.logits(adapter.encode_images(images), adapter.encode_captions(captions)))
        losses.append(adapter.matching_loss(images, captions))
        losses[-1].backward()
    assert torch.allclose(*scores, atol=1e-4)
    assert float(losses[0].detach()) == pytest.approx(float(losses[1].detach()), abs=1e-4)
    gradients = [(one.grad, other.grad) for one, other in zip(plain.parameters(), fast.parameters(), strict=True)]
    gradients = [both for both in gradients if both[0] is not None]
    allowed = bound(plain.model, max(one.abs().max() for one, _ in gradients), passes=2)
    assert gradients and all(torch.allclose(*both, atol=allowed, rtol=0) for both in gradients)


@pytest.mark.slow
def test_no_compiler_is_one_clear_error(tiny_hf_clip, tmp_path):
    import os
    import subprocess
    import sys

    command = ["-m", "ttmbench", "--model", "hf", "--model_args", f"pretrained={tiny_hf_clip}", "--compile"]
    done = subprocess.run(
        [sys.executable, *command, "--tasks", "shapes_color", "--limit", "4", "--device", "cpu"],
        env={**os.environ, "CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be compiled here" in done.stderr and "run without --compile" in done.stderr


def test_half_precision_does_not_train(folder):
    adapter = hf.load(pretrained=str(folder), device="cpu", dtype="fp16")
    with pytest.raises(UsageError, match="use --dtype bf16 or fp32"):
        adapter.matching_loss(adapter.prepare_images(random_images()), adapter.prepare_captions(CAPTIONS))


def test_images_are_kept_as_bytes(folder):
    prepared = hf.load(pretrained=str(folder), device="cpu").prepare_images(random_images())
    assert prepared["pixel_values"].dtype == torch.uint8


def test_every_module_is_in_the_mode_of_what_is_done(tiny_hf_clip):
    model = hf.load(pretrained=str(tiny_hf_clip), device="cpu")
    captions = model.prepare_captions(["a red circle"])
    for done, training in (("train_captions", True), ("train_captions", True), ("encode_captions", False)):
        getattr(model, done)(captions)
        assert {module.training for module in model.model.modules()} == {training}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_epoch_waits_for_the_device_once(tiny_hf_clip, monkeypatch, dtype):
    """What a tensor of floats tells the host makes it wait for an accelerator; the loss of an epoch may."""
    adapter = hf.load(pretrained=str(tiny_hf_clip), device="cpu", dtype=dtype)
    images = torch.randint(0, 256, (6, 3, *adapter._size), dtype=torch.uint8)
    captions = adapter.prepare_captions([f"a {word} b" for word in "c d e f g h".split()])
    rows = np.arange(6)[:, None]
    prepared = Prepared({"pixel_values": images}, captions, Rows(rows, rows))
    waits = []
    for name in ("item", "cpu", "numpy", "tolist", "__float__", "__bool__", "__int__"):
        real = getattr(torch.Tensor, name)

        def counted(self, *args, real=real, name=name, **kwargs):
            if self.is_floating_point():
                waits.append(name)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)
    config = TTMConfig(epochs=3)
    optimizer = make_optimizer(adapter, config)
    generator = np.random.default_rng(0)
    finetune(
        adapter,
        prepared,
        TrainingPairs(rows, rows),
        optimizer,
        config=config,
        learning_rate=1e-4,
        batch=2,
        rng=generator,
    )
    assert waits == ["__float__"] * 3
