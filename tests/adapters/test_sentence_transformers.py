"""Embedding models, late interaction and rerankers of Sentence Transformers: scores are those of the library."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
import torch
from support import tiny_models
from support.adapter_inputs import CAPTIONS, logits_of, random_images
from torch.nn import functional

from ttmbench import simple_evaluate
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters import sentence_transformers as adapters
from ttmbench.testing import check_adapter

library = pytest.importorskip("sentence_transformers", minversion="6.0")
KINDS = {
    "sentence_transformers": (adapters.load, "SentenceTransformer", "qwen3_vl"),
    "clip": (adapters.load, "SentenceTransformer", "clip"),
    "multi_vector": (adapters.load_multi_vector, "MultiVectorEncoder", "qwen3_vl"),
    "colqwen2": (adapters.load_multi_vector, "MultiVectorEncoder", "ColQwen2"),
    "colpali": (adapters.load_multi_vector, "MultiVectorEncoder", "ColPali"),
    "embedding_gemma2": (adapters.load, "SentenceTransformer", "embedding_gemma2"),
    "modernvbert": (adapters.load_multi_vector, "MultiVectorEncoder", "modernvbert"),
    "cross_encoder": (adapters.load_cross_encoder, "CrossEncoder", "qwen3_vl"),
}
IMAGES = [*random_images(2, (50, 40)), *random_images(1, (70, 30))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sentence")
    return {name: tiny_models.sentence_model(root / name, kind, family) for name, (_, kind, family) in KINDS.items()}


def own_scores(folder, kind, dimensions=None, batch_size=32, image_prompt=None, caption_prompt=None, **loaded):
    """Similarity or log-odds [images, captions] by the library's own methods."""
    model, how = getattr(library, kind)(str(folder), device="cpu", **loaded), {"batch_size": batch_size}
    if kind == "CrossEncoder":
        pairs = [(caption, image) for image in IMAGES for caption in CAPTIONS]
        scores = model.predict(pairs, activation_fn=torch.nn.Identity(), prompt=caption_prompt, **how)
        return torch.from_numpy(scores.reshape(len(IMAGES), -1, *scores.shape[1:]))
    how |= {} if dimensions is None else {"truncate_dim": dimensions}
    captions = model.encode_query(CAPTIONS, prompt=caption_prompt, **how)
    return model.similarity(captions, model.encode_document(IMAGES, prompt=image_prompt, **how)).T


def scores_of(adapter, images=IMAGES):
    """Scores [images, captions] of an adapter."""
    if not isinstance(adapter, adapters.RerankerModel):
        return logits_of(adapter, images)
    found = adapter.score_pairs([image for image in images for _ in CAPTIONS], CAPTIONS * len(images))
    return torch.from_numpy(found).reshape(len(images), -1)


@pytest.mark.parametrize("name", KINDS)
def test_scores_are_the_librarys_and_the_contract_is_kept(name, folders):
    load, kind, _ = KINDS[name]
    adapter = load(pretrained=str(folders[name]), device="cpu")
    declared = adapter.fingerprint()
    scale = 1 / declared.get("temperature", 1.0)
    if kind != "CrossEncoder":
        assert declared["caption_prompt"] == ("" if name.startswith("col") else tiny_models.PROMPTS["query"])
        assert scale == pytest.approx(float(torch.tensor(2.6592).exp()) if name == "clip" else 50, rel=1e-3)
    together = scores_of(adapter) / scale
    for size in (1, 32):
        assert torch.allclose(together, own_scores(folders[name], kind, batch_size=size), atol=1e-5, rtol=2e-6)
    single = torch.cat([scores_of(adapter, [image]) for image in IMAGES]) / scale
    assert torch.allclose(single, together, atol=1e-5, rtol=2e-6) and together.std() > 1e-3
    made = check_adapter(adapter)
    assert any("state" in one for one in made) and any("batch" in one for one in made), made


def test_images_that_the_library_takes_for_one_row_are_apart(folders, tmp_path):
    broken = without(folders["embedding_gemma2"], tmp_path / "broken", "chat_template.jinja")
    with pytest.raises(DataError, match="chat template"):
        adapters.load(pretrained=str(broken), device="cpu")
    bare = without(broken, tmp_path / "bare")
    edit(bare / "sentence_bert_config.json", lambda settings: settings["modality_config"].pop("message"))
    adapter = adapters.load(pretrained=str(bare), device="cpu", temperature=1.0)
    expected = own_scores(bare, "SentenceTransformer", batch_size=1)
    assert torch.allclose(logits_of(adapter, IMAGES), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["sentence_transformers", "clip", "multi_vector", "cross_encoder"])
def test_prompts_temperature_and_dimensions_are_as_asked(name, folders):
    load, kind, _ = KINDS[name]
    cut = {"dimensions": 8} if kind == "SentenceTransformer" else {}
    asked = {"image_prompt": "the cat on ", "caption_prompt": "document", "temperature": 0.5, **cut}
    adapter = load(pretrained=str(folders[name]), device="cpu", **{"prompt": "document"} if "cross" in name else asked)
    prompts = {"image_prompt": "the cat on ", "caption_prompt": tiny_models.PROMPTS["document"]}
    expected = own_scores(folders[name], kind, **prompts, **cut) / (1 if "cross" in name else 0.5)
    assert torch.allclose(scores_of(adapter), expected, atol=2e-5, rtol=0)
    stated = {"prompt": prompts["caption_prompt"]} if "cross" in name else {**asked, **prompts}
    assert stated.items() <= adapter.fingerprint().items()


def test_padded_token_vectors_never_count(folders):
    adapter, pad = KINDS["multi_vector"][0](pretrained=str(folders["multi_vector"]), device="cpu"), functional.pad
    images = adapter.encode_images(adapter.prepare_images(IMAGES))
    captions = adapter.encode_captions(adapter.prepare_captions(CAPTIONS))
    wider = adapter.logits(pad(images, (0, 0, 0, 5)), pad(captions, (0, 0, 3, 2)))
    assert torch.allclose(wider, adapter.logits(images, captions), atol=1e-4)
    assert (adapter.logits(pad(-images.abs(), (0, 0, 0, 5)), captions.abs()) < 0).all()


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("yes", "no"), ("cat", "dog")])
def test_two_classes_give_their_difference(names, folders, tmp_path):
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    first = Transformer(str(folders["sentence_transformers"]))
    first.model.config.id2label = dict(enumerate(names))
    torch.manual_seed(2)
    head = Dense(32, 2, activation_function=None, module_output_name="scores")
    model = library.CrossEncoder(modules=[first, Pooling(32, "lasttoken"), head], device="cpu")
    model.save_pretrained(str(tmp_path), create_model_card=False)
    if "cat" in names:
        with pytest.raises(UsageError, match="2 classes"):
            adapters.load_cross_encoder(pretrained=str(tmp_path), device="cpu")
        return
    logits, positive = own_scores(tmp_path, "CrossEncoder"), 0 if "yes" in names else 1
    expected = logits[..., positive] - logits[..., 1 - positive]
    found = scores_of(adapters.load_cross_encoder(pretrained=str(tmp_path), device="cpu"))
    assert torch.allclose(found, expected, atol=1e-5, rtol=0) and expected.std() > 1e-3


@pytest.mark.parametrize("train", ["all", "lora:4", "last_block"])
@pytest.mark.parametrize("name", ["sentence_transformers", "multi_vector", "colqwen2", "cross_encoder"])
def test_ttm_trains_and_what_it_saves_scores_alike(name, train, folders, tmp_path):
    how = {"limit": 4, "device": "cpu", "bootstrap_iters": 0, "methods": "ttm", "batch_size": 3}
    how |= {"ttm_args": f"iterations=2,epochs=1,lr=0.01,train={train}", "use_cache": "off"}
    how |= {"model_args": f"pretrained={folders[name]}", "dtype": "bf16" if train == "all" else "fp32"}
    saved = {"save_adapted": str(tmp_path)} if train == "last_block" else {}
    kind = "multi_vector" if name == "colqwen2" else name
    results = simple_evaluate(kind, "shapes_color", **how, **saved)["results"]["shapes_color"]
    assert "group_match,ttm" in results and "group_score,none" in results
    for folder in (file.parent for file in tmp_path.rglob("modules.json")):
        raw = {"limit": 4, "device": "cpu", "bootstrap_iters": 0, "use_cache": "off", "batch_size": 2}
        again = simple_evaluate(kind, "shapes_color", model_args=f"pretrained={folder}", **raw)
        for metric in ("text_score", "image_score", "group_match"):
            assert again["results"]["shapes_color"][f"{metric},none"] == results[f"{metric},ttm"]
    assert [*tmp_path.rglob("modules.json")] or not saved


@pytest.mark.parametrize("name", ["sentence_transformers", "cross_encoder"])
def test_images_are_processed_once_a_run(name, folders, monkeypatch):
    """Rows that the library joins in a way of its own are prepared in each pass, to the same scores."""
    from transformers import Qwen2VLImageProcessor

    processed, own = [], Qwen2VLImageProcessor.preprocess
    seen = {"preprocess": lambda self, images, **how: processed.extend(images) or own(self, images, **how)}
    monkeypatch.setattr(Qwen2VLImageProcessor, *seen.popitem())
    how = {"limit": 4, "device": "cpu", "bootstrap_iters": 0, "methods": "ttm", "use_cache": "off"}
    how |= {"model_args": f"pretrained={folders[name]}", "ttm_args": "iterations=3,epochs=2,lr=0.01"}
    once = simple_evaluate(name, "shapes_color", **how)["results"]
    few = len(processed)
    monkeypatch.setattr(adapters, "_same", lambda one, other: False)
    assert simple_evaluate(name, "shapes_color", **how)["results"] == once
    assert len(processed) - few > 2 * few


@pytest.mark.parametrize("name", ["sentence_transformers", "cross_encoder"])
def test_adapter_of_peft_is_put_on_the_weights(name, folders, tmp_path):
    peft = pytest.importorskip("peft")
    load, kind, _ = KINDS[name]
    model = getattr(library, kind)(str(folders[name]), device="cpu")
    targets = {"target_modules": r".*language_model.*\.(q|v)_proj", "init_lora_weights": False}
    made = peft.get_peft_model(model.transformers_model, peft.LoraConfig(r=4, **targets))
    made.save_pretrained(tmp_path / "adapter")
    how = {"device": "cpu"} if kind == "CrossEncoder" else {"device": "cpu", "temperature": 1.0}
    own = load(pretrained=str(folders[name]), **how)
    made.merge_and_unload()
    model.save_pretrained(str(tmp_path / "merged"), create_model_card=False)
    expected, plain = own_scores(tmp_path / "merged", kind), scores_of(own)
    assert not torch.allclose(plain, expected, atol=1e-4)
    for merge in (True, False):
        adapter = load(pretrained=str(folders[name]), peft=str(tmp_path / "adapter"), merge=merge, **how)
        adapter.save(tmp_path / f"saved-{merge}")
        for one in (adapter, load(pretrained=str(tmp_path / f"saved-{merge}"), **how)):
            assert torch.allclose(scores_of(one), expected, atol=1e-5, rtol=0)
        assert adapter.fingerprint()["peft"]["merged"] is merge
        assert [one.name for one in adapter.files.beside] == [str(tmp_path / "adapter")]
    coarse = load(pretrained=str(folders[name]), weights_dtype="bf16", attn_implementation="eager", **how)
    assert coarse.untrainable and torch.allclose(scores_of(coarse), plain, atol=0.2 * float(plain.std()) + 0.01)
    stated = [(one.fingerprint()["weights"], one.fingerprint()["attn_implementation"]) for one in (own, coarse)]
    assert stated == [("float32", "sdpa"), ("bfloat16", "eager")]


CODE = {  # as GME's, a module of the library with changes; as Jina's, a module of its own around a model of its own
    "MultiModal": """
from sentence_transformers.base.modules import Transformer
class MultiModal(Transformer):
    def preprocess(self, inputs, prompt=None, **kwargs):
        return super().preprocess(inputs, prompt=(prompt or "") + "the cat ", **kwargs)
    def forward(self, features, **kwargs):
        features = super().forward(features, **kwargs)
        return features | {"token_embeddings": features["token_embeddings"] - 0.1}
""",
    "Own": """
from sentence_transformers.base.modules import InputModule
from transformers import AutoModel, AutoProcessor, Qwen3VLConfig, Qwen3VLModel
class OwnConfig(Qwen3VLConfig):
    model_type = "own"
class OwnModel(Qwen3VLModel):
    config_class = OwnConfig
class Own(InputModule):
    config_keys, modalities = [], ["text", "image"]
    def __init__(self, path, **how):
        super().__init__()
        self.model, self.processor = AutoModel.from_pretrained(path, **how), AutoProcessor.from_pretrained(path, **how)
        self.tokenizer = self.processor.tokenizer
    @classmethod
    def load(cls, path, revision=None, **more):
        return cls(path, trust_remote_code=True, revision=revision)
    def tokenize(self, texts, **unused):
        images = None if isinstance(texts[0], str) else list(texts)
        words = ["<|vision_start|><|image_pad|><|vision_end|>"] * len(texts) if images else list(texts)
        inputs = self.processor(text=words, images=images, padding=True, return_tensors="pt")
        return {f"own_{key}": value for key, value in inputs.items()}
    def forward(self, features, task=None, **unused):
        states = self.model(**{key.removeprefix("own_"): value for key, value in features.items()}).last_hidden_state
        return {"sentence_embedding": states[:, -1] - {"query": 0.1, "document": 0.2}[task]}
    def save(self, output_path, *args, **kwargs):
        self.model.save_pretrained(output_path)
        self.processor.save_pretrained(output_path)
""",
}


@pytest.mark.parametrize("kind", CODE)
def test_own_code_is_run_with_the_flag(kind, folders, tmp_path):
    coded = with_code(folders["sentence_transformers"], tmp_path / "coded", kind)
    load = partial(adapters.load, device="cpu", trust_remote_code=True, temperature=1.0)
    adapter, plain = load(pretrained=str(coded)), load(pretrained=str(folders["sentence_transformers"]))
    expected = own_scores(coded, "SentenceTransformer", trust_remote_code=True)
    assert torch.allclose(logits_of(adapter, IMAGES), expected, atol=1e-5, rtol=0)
    assert not torch.allclose(logits_of(plain, IMAGES), expected, atol=1e-3)
    how = {"limit": 4, "device": "cpu", "bootstrap_iters": 0, "methods": "ttm", "trust_remote_code": True}
    how |= {"model_args": f"pretrained={coded}", "ttm_args": "iterations=1,epochs=1,lr=0.01"}
    results = simple_evaluate("sentence_transformers", "shapes_color", **how)["results"]
    assert "group_match,ttm" in results["shapes_color"]
    adapter.save(tmp_path / "saved")
    assert torch.equal(logits_of(load(pretrained=str(tmp_path / "saved")), IMAGES), logits_of(adapter, IMAGES))
    (coded / "custom_st.py").write_text(CODE[kind].replace("0.1", "0.3"), encoding="utf-8")
    assert load(pretrained=str(coded)).fingerprint() != adapter.fingerprint()


def with_code(folder, target, kind="MultiModal"):
    """A copy of a model whose first module is of its own code, or all of it, with its model."""
    coded = without(folder, target)
    (coded / "custom_st.py").write_text(CODE[kind], encoding="utf-8")
    edit(coded / "modules.json", lambda modules: modules[0].update(type=f"custom_st.{kind}", kwargs=["task"]))
    if kind == "Own":
        classes = {"AutoConfig": "custom_st.OwnConfig", "AutoModel": "custom_st.OwnModel"}
        edit(coded / "modules.json", lambda modules: modules.pop())
        edit(coded / "config.json", lambda config: config.update(model_type="own", auto_map=classes))
    return coded


def edit(file, change):
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def without(folder, target, *names):
    shutil.copytree(folder, target)
    for name in names:
        (target / name).unlink()
    return target


def test_what_cannot_be_read_is_said(folders, tmp_path):
    folder = folders["sentence_transformers"]
    text = tmp_path / "text"
    raw = tiny_models.language_model(tmp_path / "raw", "gpt2")
    library.SentenceTransformer(str(raw), device="cpu").save_pretrained(str(text), create_model_card=False)
    bare = without(folder, tmp_path / "bare", "processor_config.json")
    plain = without(folder, tmp_path / "plain", "modules.json")
    coded = with_code(folder, tmp_path / "coded")
    alone = without(folder, tmp_path / "alone", "config.json")
    (alone / "adapter_config.json").write_text("{}", encoding="utf-8")
    for where, how, error, fact in (
        (text, {}, UsageError, "text alone"),
        (bare, {}, DataError, "has no image processor"),
        (plain, {}, UsageError, "modules.json"),
        (alone, {}, UsageError, "PEFT adapter alone"),
        (folders["multi_vector"], {}, UsageError, "is a MultiVectorEncoder"),
        (folders["colpali"], {}, UsageError, "is a MultiVectorEncoder"),
        (coded, {}, DataError, "--trust_remote_code"),
        (folder, {"caption_prompt": "no-such-name"}, UsageError, "caption_prompt=no-such-name.*query, document"),
        (folder, {"dimensions": 33}, UsageError, "the model's vectors have 32"),
    ):
        with pytest.raises(error, match=fact) as caught:
            adapters.load(pretrained=str(where), device="cpu", **how)
        assert "\n" not in str(caught.value)


def test_older_libraries_are_refused(folders, monkeypatch):
    monkeypatch.setattr(adapters.metadata, "version", lambda name: "5.1.0")
    with pytest.raises(UsageError, match=r"sentence-transformers 6 or newer, and 5\.1\.0"):
        adapters.load(pretrained=str(folders["clip"]), device="cpu")
