"""Every family of image-text models, with tiny random weights: as the library scores it, and trained by one iteration.

Families are all of transformers' mappings for image-text-to-text and zero-shot image classification, the heads that
`itm` and `itc` take, and one architecture for each way in which open_clip's configurations build towers. One that a
later release adds is tested too, until it is listed here with the reason why it cannot be. The whole file, slow tests
included, compares the table of tests/evidence/families.md with what it found; WRITE_FAMILIES=1 writes it.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import transformers as tf
from adapters import test_hf, test_itm_itc, test_visualgpt
from open_clip.factory import get_model_config
from support import processes, tiny_models
from support.adapter_inputs import CAPTIONS, groups_of, logits_of, quick_scores, random_images
from support.chat_families import FAMILIES, Processor, build, words
from support.checkout import load_script
from transformers.models.auto.modeling_auto import MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES as ZERO_SHOT

import ttmbench
from ttmbench.methods.parameters import SETS
from ttmbench.model_adapters import hf, itc, itm, visualgpt
from ttmbench.model_adapters import open_clip as open_clip_models
from ttmbench.model_adapters._shared.image_text import ImageTextModel
from ttmbench.model_adapters._shared.options import VisualgptOptions, VqascoreOptions
from ttmbench.model_adapters._shared.pretrained import LoadedModel
from ttmbench.model_adapters.vqascore import VQAScore

PAGE = Path(__file__).resolve().parents[1] / "evidence" / "families.md"
NOT_HERE = {
    "tested apart": "blip-2 instructblip perception_lm mllama",
    "refused: no encoded images": "blip evolla florence2 git idefics instructblipvideo kosmos-2 kosmos-2.5 mistral4 "
    "pi0 diffusion_gemma pix2struct pp_formulanet t5gemma2 udop vision-encoder-decoder",
    "fails in transformers 5.24": "llama4",
    "refused: no chat template": "fuyu",
    "not tested: cannot be shrunk": "apertus1p5 emu3 granite4_vision hunyuan_vl qwen4_exp",
}
PAIRS = {"paligemma", "unlimited_ocr"}  # tokens of its prompt see those that follow; its cache cannot be reordered
NO_TOWER = {"gemma4_unified", "chameleon"}  # patches as they are, tokens of images
LEFT_OUT = {family: reason for reason, families in NOT_HERE.items() for family in families.split()}
DUALS = [name for name in ZERO_SHOT if name not in ("blip", "blip-2", "videoprism")]
QUICK = ("gemma3", "paligemma", "qwen3_5")  # sliding windows, a prefix that sees all of itself, linear attention
TRAINED = {"iterations": 1, "epochs": 1, "tau_start": 0.0, "tau_end": 0.0, "augment": False}
TRAINED |= {"lr": 0.01, "train": "last_block"}
RESUMED = {"xclip": "hf", "videoprism": "hf", "SentenceTransformer": "sentence_transformers"}
RESUMED |= {"MultiVectorEncoder": "multi_vector", "CrossEncoder": "cross_encoder"}
FOUND: dict[tuple[str, str], tuple[str, ...]] = {
    ("`hf`", "videoprism"): ("tested apart",),  # with videos
    **{("`sentence_transformers`", one): ("tested apart: own code",) for one in ("gme", "jina-embeddings-v4")},
    ("`multi_vector`", "colmodernvbert"): ("fails in transformers 5.24",),
    ("`multi_vector`", "adapters of peft"): ("refused: their base is not in the repository",),
}
RETRIEVERS = "clip embedding_gemma2 multi_vector colqwen2 colpali modernvbert cross_encoder".split()
RETRIEVERS += ["sentence_transformers"]
KILLED = """
import json, os, sys, ttmbench
from ttmbench.methods.runner import SeedCheckpoint as Kept
Kept.keep = lambda self, *given, keep=Kept.keep: (keep(self, *given), os.kill(os.getpid(), 9))
kind, task, how = json.loads(sys.argv[1])
ttmbench.simple_evaluate(kind, task, **how)
"""


def record(name: str, family: str, adapters: object, difference: float, prefix: str = "-") -> None:
    """Trains the last blocks; a row of the table, where the difference may be ten times as large on another CPU."""
    for adapter in adapters if isinstance(adapters, tuple) else (adapters,):
        run = ttmbench.simple_evaluate(
            adapter, "shapes_replace", limit=2, bootstrap_iters=0, device="cpu", ttm=True, ttm_args=TRAINED
        )
        raw, trained = (run.scores["shapes_replace"][method][0].groups for method in ("none", "ttm"))
        assert np.isfinite(trained).all() and not np.array_equal(raw, trained)
    assert difference < 1e-4
    print(f"{name} {family}: {difference:.1e}, prefix {prefix}")
    FOUND[name, family] = ("1e-5" if difference < 1e-5 else "1e-4", "yes", prefix)


@pytest.mark.parametrize(
    "family", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in FAMILIES]
)
def test_a_chat_family_scores_as_its_own_forward(family):
    if family in LEFT_OUT:
        FOUND["`vqascore`", family] = (LEFT_OUT[family],)
        pytest.skip(LEFT_OUT[family])
    model = build(family, words())
    processor = Processor(model, words())
    loaded = LoadedModel(model, None, processor.tokenizer, processor.image_processor, processor)
    chat = ImageTextModel(loaded, torch.device("cpu"))
    adapter = VQAScore(chat, VqascoreOptions(pretrained=family, device="cpu"))
    check_parts(model, adapter)
    captions = CAPTIONS[:2]
    pairs, own, likely = [(one, text) for one in random_images(2) for text in captions], [], []
    asked = adapter.prepare_captions([caption for _, caption in pairs])
    for (image, caption), prompt in zip(pairs, asked, strict=True):
        texts = (prompt, f"<image> {caption}")
        with torch.no_grad():
            logits, logs = (model(**processor(text=[text], images=[image])).logits[0].double() for text in texts)
        logits, logs = logits[-1], logs.log_softmax(dim=-1)
        tokens = torch.tensor(processor.tokenizer(caption)["input_ids"])
        likely.append(float(logs[-len(tokens) - 1 : -1].gather(1, tokens[:, None]).mean()))
        yes, no = (logits[list(answer.values())].logsumexp(dim=0) for answer in (adapter.yes, adapter.no))
        own.append(float(yes - no))
    captioner = visualgpt.ChatCaptioner(chat, VisualgptOptions(pretrained=family, device="cpu"))
    found = adapter.score_pairs(*zip(*pairs, strict=True))
    with torch.inference_mode():
        seen = adapter.encode_images(adapter.prepare_images(random_images(2)))
        read = chat.tokens_read
        once = adapter.score_prepared([image for image in seen for _ in captions], asked)
    shares = chat.tokens_read - read < sum(len(chat.row(seen[0][0], prompt)["input_ids"]) for prompt in asked)
    assert chat.shares_prefix == shares == (family not in PAIRS)
    difference = np.abs([found - own, once - own, captioner.score_pairs(*zip(*pairs, strict=True)) - likely]).max()
    assert difference < 1e-5
    for axis in (0, 1):
        assert np.ptp(np.reshape(own, (2, 2)), axis=axis).max() > 1e-4, "both sides matter"
    record("`vqascore`, `visualgpt`", family, (adapter, captioner), difference, "yes" if shares else "no")


def check_parts(model, adapter):
    """The last block is that of each tower and the language model, all of it; both have layers that normalise."""
    chosen = set(SETS["last_block"](model, adapter))
    blocks = {re.match(r"(.*?\.stages\.\d+\.\w+|.*?)\.(\d+)\.", name).groups() for name in chosen}
    assert all(int(number) == len(model.get_submodule(stack)) - 1 for stack, number in blocks)
    whole = tuple(f"{stack}.{number}." for stack, number in blocks)
    assert chosen == {name for name, _ in model.named_parameters() if name.startswith(whole)}
    stacks = {stack for stack, _ in blocks}
    for names in (stacks, set(SETS["norm"](model, adapter))):
        sides = {True} if names is stacks and model.config.model_type in NO_TOWER else {True, False}
        assert {bool(re.search(r"language|text_model|^model\.layers", name)) for name in names} == sides


@pytest.mark.slow
@pytest.mark.parametrize("family", DUALS)
def test_a_dual_encoder_scores_as_its_own_forward(family, tmp_path):
    test_hf.write_like(tmp_path, ZERO_SHOT[family].removesuffix("Model"))
    adapter = hf.load(pretrained=str(tmp_path), device="cpu")
    own = test_hf.own_forward(tmp_path)[0].eval()
    tokens = {name: value for name, value in adapter.prepare_captions(CAPTIONS).items() if name != "token_type_ids"}
    images = tf.AutoImageProcessor.from_pretrained(tmp_path)(images=random_images(), return_tensors="pt")
    with torch.no_grad():
        difference = (logits_of(adapter) - own(**tokens, **images).logits_per_image).abs().max()
    record("`hf`", family, adapter, float(difference))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(itm.FAMILIES))
def test_a_head_scores_as_its_own_forward(family, tiny_vlm):
    folder, groups = tiny_vlm(family.replace("-", "")), groups_of("shapes_color", 2)
    if family in itc.FAMILIES:
        expected = test_itm_itc.expected_scores(family.replace("-", ""), folder, groups)
    else:
        own = test_itm_itc.retrieval_forward(folder)
        expected = [[[[own([i.open()], [c])[0] for c in g.captions] for i in g.images] for g in groups]]
    for library, own in zip((itm, itc), expected, strict=False):
        adapter = library.load(pretrained=str(folder), device="cpu")
        found, _ = quick_scores(adapter, "shapes_color")
        record(f"`{library.__name__.rpartition('.')[2]}`", family, adapter, np.abs(found - own).max())


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(visualgpt.FAMILIES))
def test_a_captioner_scores_as_its_own_forward(family, tiny_vlm):
    kinds = {"blip": ["blip-captioner"], "blip-2": ["blip2-opt", "blip2-t5"]}
    for kind in kinds.get(family, [family.replace("-", "")]):
        folder = str(tiny_vlm(kind))
        adapter = visualgpt.load(pretrained=folder, device="cpu")
        own = [*map(test_visualgpt.own_likelihood(kind, folder), random_images(), CAPTIONS)]
        record("`visualgpt`", family, adapter, np.abs(adapter.score_pairs(random_images(), CAPTIONS) - own).max())


def kind_of(config: dict) -> tuple[str, str]:
    """The towers of an architecture of open_clip."""
    images, text = config["vision_cfg"], config["text_cfg"]
    timm = re.sub(r"(_|\d).*", "", images.get("timm_model_name", ""))
    tower = f"timm {timm}" if timm else "ResNet" if isinstance(images.get("layers"), list) else "ViT"
    return tower, "CoCa" if "multimodal_cfg" in config else "text of transformers" if "hf_model_name" in text else ""


KINDS = {kind_of(get_model_config(name)): name for name in reversed(open_clip.list_models())}
KINDS.pop(("timm vit", "text of transformers"))  # needs attention pooling, which timm's small tower has not
FOUND["`open_clip`", "timm vit, text of transformers"] = ("not tested: has no small tower",)
SMALL = {  # smaller towers of timm than any that open_clip names
    **{"timm convnext": "test_convnext", "timm vit": "test_vit", "timm eva": "eva02_tiny_patch14_224"},
    **{"timm fastvit": "fastvit_t8", "timm swin": "swin_tiny_patch4_window7_224", "timm vitamin": "vitamin_small_224"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS), ids=", ".join)
def test_an_architecture_of_open_clip_scores_as_there(kind, tmp_path):
    config = get_model_config(KINDS[kind]) | {"embed_dim": 64}
    tower, images, text = kind[0], config["vision_cfg"], config["text_cfg"]
    if tower in SMALL:
        images |= {"timm_model_name": SMALL[tower], "timm_proj": "linear"}
        images["image_size"] = 160 if "test" in SMALL[tower] else 224
    else:
        images |= {"layers": [1, 1, 1, 1] if tower == "ResNet" else 2, "width": 32, "head_width": 16}
        images |= {"image_size": 32, "patch_size": 8}
    small = {"context_length": 20, "width": 32, "heads": 2, "layers": 2}
    if "hf_model_name" in text:
        told = tiny_models.tokenizer("bert")
        sizes = {**tiny_models.TEXT, "vocab_size": len(told), "max_position_embeddings": 40, "pad_token_id": 0}
        tf.RobertaModel(tf.RobertaConfig(**sizes)).save_pretrained(tmp_path / "text")
        told.save_pretrained(tmp_path / "model")
        text |= {"hf_model_name": str(tmp_path / "text"), "hf_tokenizer_name": str(tmp_path / "model")}
        text["context_length"] = 20
    else:
        text |= small
    if "multimodal_cfg" in config:
        images["attn_pooler_heads"] = 2
        config["multimodal_cfg"] |= {**small, "attn_pooler_heads": 2}
    name = f"local-dir:{tiny_models.open_clip(tmp_path / 'model', config)}"
    adapter = open_clip_models.load(model=name, device="cpu")
    model, _, transform = open_clip.create_model_and_transforms(name)
    pixels = torch.stack([transform(image) for image in random_images()])
    tokens = open_clip.get_tokenizer(name)(CAPTIONS)
    with torch.no_grad():
        own = model.eval().encode_image(pixels, normalize=True) @ model.encode_text(tokens, normalize=True).T
        own = own * model.logit_scale.exp() + (getattr(model, "logit_bias", None) or 0)
    record("`open_clip`", ", ".join(filter(None, kind)), adapter, float((logits_of(adapter) - own).abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_retriever_scores_as_its_library_does(name, tmp_path):
    pytest.importorskip("sentence_transformers", minversion="6.0")
    from adapters import test_sentence_transformers as theirs

    load, kind, family = theirs.KINDS[name]
    adapter = load(pretrained=str(tiny_models.sentence_model(tmp_path, kind, family)), device="cpu")
    found = theirs.scores_of(adapter) * adapter.fingerprint().get("temperature", 1)
    difference = (found - theirs.own_scores(tmp_path, kind)).abs().max()
    record(f"`{RESUMED[kind]}`", family.lower(), adapter, float(difference))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RESUMED, "blip-captioner", "git", "florence2", "llava"])
def test_a_killed_run_resumes_with_equal_bits(name, tiny_vlm, tmp_path):
    kind, folder = RESUMED.get(name, "visualgpt"), tmp_path / "model"
    task = "shapes_order" if kind == "hf" else "shapes_color"
    if kind in ("hf", "visualgpt"):
        folder = tiny_vlm(name)
    else:
        pytest.importorskip("sentence_transformers", minversion="6.0")
        tiny_models.sentence_model(folder, name)
    how = {"limit": 4, "device": "cpu", "bootstrap_iters": 0, "dtype": "bf16", "seeds": [0], "ttm": True}
    how |= {"model_args": {"pretrained": str(folder)}, "use_cache": str(tmp_path / "cache")}
    how["ttm_args"] = {**TRAINED, "iterations": 3, "train": "lora:2"}
    expected = ttmbench.simple_evaluate(kind, task, **how)
    how["output_path"] = str(tmp_path / "x.json")
    for _ in range(2):
        program = ["-c", KILLED, json.dumps([kind, task, how])]
        done = processes.run(program, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == -signal.SIGKILL, done.stderr
    found = ttmbench.simple_evaluate(kind, task, **how)
    raw, adapted = ([one.scores[task][way][0].groups.tolist() for one in (found, expected)] for way in ("none", "ttm"))
    assert adapted[0] == adapted[1] != raw[0] == raw[1]
    records = [one["methods"][task]["ttm"]["iterations"] for one in (found, expected)]
    assert len({str([{**line, "seconds": 0} for line in record]) for record in records}) == 1


@pytest.mark.slow
def test_the_page_shows_every_family():
    tested = FAMILIES, DUALS, itm.FAMILIES, itc.FAMILIES, KINDS, visualgpt.FAMILIES, RETRIEVERS
    if len(FOUND) < sum(map(len, tested)) + 6:
        pytest.skip("run the whole file in one process")
    rows: dict[tuple[str, ...], list[str]] = {}
    for (adapter, family), outcome in sorted(FOUND.items()):
        rows.setdefault((adapter, *outcome, *["-"] * (3 - len(outcome))), []).append(family)
    parts = load_script("docs/page_parts")
    lines = [[adapter, "; ".join(families), *rest] for (adapter, *rest), families in rows.items()]
    table = parts.table(["`--model`", "families", "equal to the library within", "TTM", "shared prefix"], lines)
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("WRITE_FAMILIES"):
        PAGE.write_text(parts.between(text, "families", table), encoding="utf-8")
    else:
        assert parts.between(text, "families", table) == text
