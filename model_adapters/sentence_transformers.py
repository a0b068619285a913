"""Sentence Transformers: embedding models, late interaction and rerankers that read images.

Captions are queries and images documents: prompts, routes and lengths are those of ``encode_query`` and
``encode_document``. Inputs are prepared once each and joined in batches where that gives what the library prepares
together; else the library prepares them batch by batch.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from ttmbench._util.file_io import json_digest
from ttmbench._util.third_party import ADAPTER_CONFIG, MODULES, quiet_hub
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.contrastive import ContrastiveModel, Tower, longer_than, on_device
from ttmbench.model_adapters._shared.fitting import library_class
from ttmbench.model_adapters._shared.image_text import ImageMemory, PreparedImage
from ttmbench.model_adapters._shared.options import (
    CrossEncoderOptions,
    HubFiles,
    LanguageOptions,
    MultiVectorOptions,
    SentenceTransformersOptions,
    takes,
)
from ttmbench.model_adapters._shared.pair_model import COARSE, TrainablePairModel
from ttmbench.model_adapters._shared.pretrained import (
    KEPT,
    LoadedModel,
    Pretrained,
    adapter_of,
    apply_adapter,
    check_code,
    described,
    find_repository,
    merged,
    not_loaded,
    plain,
    special_tokens,
    weights_dtype,
)
from ttmbench.types import ModelFiles

TEMPERATURE = 0.02
QUERY, DOCUMENT = "query", ("document", "passage", "corpus")  # names of prompts, as encode_query and encode_document
IDS = "input_ids"
MATCHING = ("label_1", "1", "yes", "true", "relevant")  # names of the class of pairs that match; label_1 is the default
PROBES: dict[str, list[Any]] = {  # captions of different lengths, and images cut into different numbers of patches
    QUERY: ["a", "a cat on a mat"],
    DOCUMENT[0]: [Image.new("RGB", size) for size in ((64, 64), (240, 60))],
}
_NAME = re.compile(r"[\w.-]+")
_SMALL = re.compile(r".+\.(json|txt|model|jinja|py|tiktoken|bpe|vocab|spm)")
_PICKLE = re.compile(r"(.+/)?pytorch_model.*\.bin")


@takes(SentenceTransformersOptions)
def load(asked: SentenceTransformersOptions) -> EmbeddingModel:
    """Loads an embedding model from the Hub or a folder; DataError for its files, or UsageError."""
    return EmbeddingModel(_load("SentenceTransformer", asked), asked)


@takes(MultiVectorOptions)
def load_multi_vector(asked: MultiVectorOptions) -> MultiVectorModel:
    """Loads a late interaction model; errors as for `load`."""
    return MultiVectorModel(_load("MultiVectorEncoder", asked), asked)


@takes(CrossEncoderOptions)
def load_cross_encoder(asked: CrossEncoderOptions) -> RerankerModel:
    """Loads a reranker; errors as for `load`, and UsageError for classes of which none says that a pair matches."""
    loaded = _load("CrossEncoder", asked)
    model: Any = loaded.model
    names = [str(model.transformers_model.config.id2label.get(index)) for index in range(model.num_labels)]
    matches = [index for index, name in enumerate(names) if name.lower() in MATCHING]
    if len(names) > 2 or (len(names) == 2 and len(matches) != 1):
        raise UsageError(
            f"{asked.pretrained} has {len(names)} classes ({', '.join(names[:3])}); a reranker has one score, or two "
            f"classes of which one is named {', '.join(MATCHING)}"
        )
    return RerankerModel(loaded, asked, matches[0] if len(names) == 2 else 0)


@takes(HubFiles)
def locate(asked: HubFiles) -> list[ModelFiles]:
    """The files that a model is loaded from, fetched unless ``offline``; DataError if they are out of reach."""
    files, _ = _fetched(asked)
    return [files, *files.beside]


def _fetched(asked: HubFiles, kind: str | None = None) -> tuple[ModelFiles, Pretrained | None]:
    """Files of every module, each in its folder: safetensors, or else pickles; and an adapter of peft.

    What the small files tell is refused before weights are fetched.
    """
    name, repository = asked.pretrained, find_repository(asked.pretrained, asked.revision, offline=asked.offline)
    files = sorted(file for file in repository.files if not file.startswith(("onnx/", "openvino/")))
    weights = [file for file in files if file.endswith(".safetensors")]
    folders = {file.rpartition("/")[0] for file in weights}
    weights += [file for file in files if _PICKLE.fullmatch(file) and file.rpartition("/")[0] not in folders]
    if not weights:
        raise DataError(f"{name} has no weights in safetensors or pytorch_model.bin")
    if ADAPTER_CONFIG in files:  # the library would load its base from wherever the adapter says
        instead = f"give whole weights (often {name}-merged or {name}-hf), or its base with peft={name}"
        raise UsageError(f"{name} is a PEFT adapter alone; {instead}")
    small = repository.get(filter(_SMALL.fullmatch, files))
    saved = library_class(small)
    if saved is None:
        raise UsageError(f"{name} has no {MODULES}, so it is not a model of Sentence Transformers")
    if kind not in (None, saved):  # the library would guess a pooling, or draw a projection
        raise UsageError(f"{name} is a {saved} of Sentence Transformers, and this model reads a {kind}")
    check_code(asked, small)
    folder = repository.get(weights)
    found = ModelFiles(name, folder, tuple(weights), repository.commit)
    if asked.peft is None:
        return found, None
    adapter, _ = adapter_of(asked, asked.peft)
    adapter.repository.get([ADAPTER_CONFIG, *adapter.files.weights])
    return replace(found, beside=(adapter.files,)), adapter


def _load(kind: str, asked: LanguageOptions) -> LoadedModel:
    """A model of the library on the CPU, and what it is made of; DataError or UsageError."""
    found = metadata.version("sentence-transformers") if find_spec("sentence_transformers") else "none"
    if found == "none" or int(found.partition(".")[0]) < 6:  # which needs transformers 5
        install = "pip install 'ttmbench[sentence-transformers]'"
        raise UsageError(f"this model needs sentence-transformers 6 or newer, and {found} is installed; {install}")
    import sentence_transformers

    (files, adapter), trusts = _fetched(asked, kind), asked.trust_remote_code
    offline = not trusts or asked.offline
    with quiet_hub(offline=offline):
        try:
            model: Any = getattr(sentence_transformers, kind)(
                # Code that a repository ships is found by the id alone.
                asked.pretrained if trusts else str(files.folder),
                revision=files.commit,
                device="cpu",
                trust_remote_code=trusts,
                local_files_only=offline,
                model_kwargs={"dtype": weights_dtype(asked), "attn_implementation": asked.attn_implementation},
            )
        except Exception as error:
            if "load image processor" in str(error):
                where = "(processor_config.json); copy it from the model that these weights were trained from"
                raise DataError(f"{asked.pretrained} has no image processor {where}") from error
            raise not_loaded(asked.pretrained, error, kind) from error
    processor = getattr(model[0], "processor", None)  # a module of own code may have none
    images = getattr(processor, "image_processor", None)
    if not (model.supports("image") or model.supports("message")) or images is None:
        raise UsageError(f"{asked.pretrained} reads text alone; use an embedding model that reads images too")
    if adapter is not None:
        apply_adapter(model.transformers_model, adapter, asked.pretrained, asked.merge)
        setattr(model, KEPT, getattr(model.transformers_model, KEPT))
    return LoadedModel(model, files, model.tokenizer, images, processor)


def _prompt_of(model: Any, option: str, asked: str | None, own: Sequence[str]) -> str:
    """A prompt as text: that of a name, the text itself, or the model's first of ``own``; UsageError for no name."""
    if asked is None:
        name = next((name for name in own if name in model.prompts), model.default_prompt_name)
        return str(model.prompts.get(name) or "")
    if asked in model.prompts or not _NAME.fullmatch(asked):
        return str(model.prompts.get(asked, asked))
    known = ", ".join(model.prompts) or "none"
    raise UsageError(f"{option}={asked}: must be a prompt of the model ({known}), or a text with a space")


def _modules_digest(model: Any) -> str:
    """sha256 of the kinds and settings of a model's modules: pooling, normalisation, masks, lengths, own code."""
    lengths = [getattr(module, "max_seq_length", None) for module in model]
    # The name of a class of own code has its commit, or a digest of its file.
    return json_digest(plain([[str(type(one)), getattr(one, "get_config_dict", dict)()] for one in model] + lengths))


class _Rows:
    """Inputs prepared one by one, which are joined in batches; or the items themselves, if it is not known how."""

    def __init__(self, model: Any, probes: Sequence[Any], **how: object) -> None:
        self._prepare = partial(model.preprocess, **how)
        self._tokenizer = model.tokenizer
        try:
            rows = [dict(self._prepare([one])) for one in probes]
            joined, whole = self._joined(rows), dict(self._prepare(list(probes)))
            # EmbeddingGemma 2 without a template takes a list of images for those of one row.
            self.are_joined = _same(joined, whole) or len(whole["attention_mask"]) < len(joined[IDS])
        except (RuntimeError, KeyError, TypeError, ValueError):  # rows of other kinds than `_column` knows
            self.are_joined = False

    def prepared(self, items: Iterable[Any]) -> list[Any]:
        """One row an item."""
        return [dict(self._prepare([one])) for one in items] if self.are_joined else list(items)

    def batch(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Inputs of the model for prepared rows."""
        return self._joined(rows) if self.are_joined else dict(self._prepare(list(rows)))

    def _joined(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        ids = [row[IDS].shape for row in rows if IDS in row]
        return {name: self._column(name, [row[name] for row in rows], ids) for name in rows[0]}

    def _column(self, name: str, values: list[Any], ids: list[torch.Size]) -> Any:
        """Values of rows below each other: tokens padded on the tokenizer's side, others, such as tiles, at the end."""
        if not isinstance(values[0], torch.Tensor):
            return values[0]
        if values[0].ndim < 2 or len({value.shape[1] for value in values}) == 1:
            return torch.cat(values)
        side = self._tokenizer.padding_side if [value.shape for value in values] == ids else "right"
        pad = self._tokenizer.pad_token_id if name == IDS else 0
        rows = [row for value in values for row in value]
        return pad_sequence(rows, batch_first=True, padding_value=pad, padding_side=side)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two batches of inputs are equal; RuntimeError or TypeError for values of other kinds."""
    equal = (torch.equal(v, other[k]) if isinstance(v, torch.Tensor) else v == other[k] for k, v in one.items())
    return one.keys() == other.keys() and all(equal)


class _Saved:
    """A model that its library saves."""

    model: Any

    def save(self, folder: Path) -> None:
        inner = self.model.transformers_model
        name = next(name for name, module in self.model.named_modules() if module is inner)
        self.model.set_submodule(name, merged(inner))
        with quiet_hub():
            self.model.save_pretrained(str(folder), create_model_card=False)
        self.model.set_submodule(name, inner)
        for code in folder.glob("*/*.py"):  # of a module, which the library writes there and reads from the root
            shutil.copy(code, folder)


class EmbeddingModel(_Saved, ContrastiveModel[Any]):
    """A ``SentenceTransformer`` as an adapter."""

    prepares_in_threads = False
    _output = "sentence_embedding"

    def __init__(self, loaded: LoadedModel, asked: MultiVectorOptions) -> None:
        model: Any = loaded.model
        prompts = {
            QUERY: _prompt_of(model, "caption_prompt", asked.caption_prompt, (QUERY,)),
            DOCUMENT[0]: _prompt_of(model, "image_prompt", asked.image_prompt, DOCUMENT),
        }
        towers = partial(model, task=DOCUMENT[0]), partial(model, task=QUERY)
        super().__init__(model, towers, device=asked.device, dtype=asked.dtype)
        self.files, self.name, self.tokenizer = loaded.files, asked.pretrained, loaded.tokenizer
        self.special_tokens = special_tokens(loaded.tokenizer, loaded.processor)
        if model.dtype != torch.float32:
            self.untrainable = COARSE
        self.dimensions: int | None = getattr(asked, "dimensions", None)
        self._prompts = prompts
        self._rows = {task: _Rows(model, PROBES[task], task=task, prompt=prompts[task]) for task in prompts}
        self._own = None if asked.temperature else getattr(self.torch_module, "logit_scale", None)
        if asked.temperature is None and self._own is None:
            self.not_logits = f"no temperature is known, {TEMPERATURE} is assumed; state it: --model_args temperature=X"
        self._fixed = torch.tensor(1 / (asked.temperature or TEMPERATURE), device=self.device)
        self._declared = {
            **loaded.describe(self.name, self.state_sha256, self.device, asked.dtype),
            "modules_sha256": _modules_digest(model),
            "caption_prompt": prompts[QUERY],
            "image_prompt": prompts[DOCUMENT[0]],
            "dimensions": self.dimensions,
            "similarity": model.similarity_fn_name,
            "weights": str(model.dtype).removeprefix("torch."),
            "temperature": round(1 / float(self._scale_and_bias()[0].detach()), 9),
        }
        self._try()

    def _try(self) -> None:
        """DataError for a model that its library cannot run on images, UsageError for too many ``dimensions``."""
        try:
            with torch.inference_mode():
                images = self.encode_images(self.prepare_images(PROBES[DOCUMENT[0]]))
                captions = self.encode_captions(self.prepare_captions(PROBES[QUERY]))
            if not len(images) == len(captions) == 2:
                raise ValueError(f"2 images and 2 captions have {len(images)} and {len(captions)} rows")
        except Exception as error:
            which = "these releases of sentence-transformers and transformers"
            raise DataError(f"{self.name} cannot encode images and captions in {which}: {described(error)}") from error
        if self.dimensions is not None and (width := captions.shape[-1]) < self.dimensions:
            raise UsageError(f"dimensions={self.dimensions}: the model's vectors have {width}")

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the weights as they were loaded, prompts, temperature, and what else changes a score."""
        return self._declared

    @property
    def torch_module(self) -> torch.nn.Module | None:
        """The model of transformers, whose names of modules say which tower they are of."""
        found: torch.nn.Module | None = self.model.transformers_model
        return found

    @property
    def _trained(self) -> torch.nn.Module:
        """All modules, such as a projection behind the model of transformers."""
        whole: torch.nn.Module = self.model
        return whole

    def prepare_images(self, images: Sequence[Image.Image]) -> list[Any]:
        """The model's own inputs for each image."""
        return self._rows[DOCUMENT[0]].prepared(images)

    def prepare_captions(self, captions: Sequence[str]) -> list[Any]:
        """The model's own inputs for each caption, with its prompt."""
        return self._rows[QUERY].prepared(captions)

    def truncated(self, captions: Sequence[str]) -> list[bool] | None:
        """Which captions have, with their prompt, more tokens than the model reads."""
        length, prompt = self.model.max_seq_length, self._prompts[QUERY]
        return None if length is None else longer_than(self.tokenizer, [prompt + one for one in captions], int(length))

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """The model's own similarity of captions with images, divided by the temperature; [images, captions]."""
        return self.model.similarity(caption_features, image_features).T * self._scale_and_bias()[0]

    def _scale_and_bias(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._fixed if self._own is None else self._own.exp(), None

    def _features(self, tower: Tower, prepared: Any, training: bool = False, of_any_norm: bool = False) -> torch.Tensor:
        of_any_norm = of_any_norm or self.model.similarity_fn_name != "cosine"
        return super()._features(tower, self._rows[tower.keywords["task"]].batch(prepared), training, of_any_norm)

    def _tower(self, tower: Tower, inputs: Any) -> torch.Tensor:
        features: torch.Tensor = tower(inputs)[self._output]
        return features[..., : self.dimensions]


class MultiVectorModel(EmbeddingModel):
    """A ``MultiVectorEncoder`` as an adapter; features are [rows, tokens, d], zero where the model masks a token.

    MaxSim: each token vector of a caption takes its most similar vector of the image, and a score is their sum.
    """

    vectors = "many"
    _output = "token_embeddings"

    def _tower(self, tower: Tower, inputs: Any) -> torch.Tensor:
        features = tower(inputs)
        tokens: torch.Tensor = features[self._output]
        return tokens.masked_fill(~features["attention_mask"].bool()[..., None], 0.0)

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """The model's own MaxSim, divided by the temperature; zero rows are padding, which it leaves out."""
        masks = {"a_mask": caption_features.any(dim=-1), "b_mask": image_features.any(dim=-1)}
        return self.model.similarity(caption_features, image_features, **masks).T * self._scale_and_bias()[0]


class RerankerModel(_Saved, TrainablePairModel):
    """A ``CrossEncoder`` as an adapter: query is the caption, document the image.

    Of two classes, the score is the logit of ``positive``, the one of pairs that match, minus the other's.
    """

    def __init__(self, loaded: LoadedModel, asked: CrossEncoderOptions, positive: int) -> None:
        super().__init__(loaded, asked)
        model: Any = loaded.model
        self._positive = positive
        prompt = _prompt_of(model, "prompt", asked.prompt, ())
        self.processor: Any = loaded.processor
        self._pairs = _Rows(model, list(zip(*PROBES.values(), strict=True)), prompt=prompt)
        self._declared |= {"modules_sha256": _modules_digest(model), "prompt": prompt, "score": "log-odds"}
        self._declared |= {"positive": positive} if model.num_labels == 2 else {}

    def prepare_images(self, images: Sequence[Image.Image]) -> list[PreparedImage]:
        """The image processor's output for each image, with which rows of captions are made when they are asked for."""
        prepared = []
        for image in images:
            memory = ImageMemory(self.processor.image_processor, None)
            self._row(PreparedImage(image, None, {}), "a", memory)
            prepared.append(PreparedImage(image, memory.answer, {}))
        return prepared

    def prepare_captions(self, captions: Sequence[str]) -> list[str]:
        """The captions: the image decides how many tokens it takes beside them."""
        return list(captions)

    def encode_images(self, prepared: Sequence[PreparedImage]) -> list[PreparedImage]:
        """The prepared images: the model reads each together with its caption."""
        return list(prepared)

    def score_prepared(self, images: Sequence[PreparedImage], captions: Sequence[str]) -> np.ndarray:
        """Log-odds, float32 [pairs]: the model's logits before any activation."""
        self.model.eval()
        return self._log_odds(images, captions).detach().cpu().numpy()

    def pair_loss(self, images: Sequence[PreparedImage], captions: Sequence[str], matched: np.ndarray) -> torch.Tensor:
        """Binary cross-entropy of the log-odds; UsageError in fp16."""
        self.check_trainable()
        self.model.train()
        truth = torch.from_numpy(matched.astype(np.float32)).to(self.device, non_blocking=True)
        return functional.binary_cross_entropy_with_logits(self._log_odds(images, captions), truth)

    def _row(self, image: PreparedImage, caption: str, memory: ImageMemory) -> Any:
        """Inputs for a caption with an image, whose pixels all of its rows share."""
        if caption not in image.rows:
            self.processor.image_processor = memory
            try:
                image.rows[caption] = self._pairs.prepared([(caption, image.image)])[0]
            finally:
                self.processor.image_processor = memory.own
        return image.rows[caption]

    def _log_odds(self, images: Sequence[PreparedImage], captions: Sequence[str]) -> torch.Tensor:
        own, pairs = self.processor.image_processor, zip(images, captions, strict=True)
        rows = [self._row(image, caption, ImageMemory(own, image.answer)) for image, caption in pairs]
        with self.arithmetic():
            scores: torch.Tensor = self.model(on_device(self._pairs.batch(rows), self.device))["scores"].float()
        positive = scores[:, self._positive]
        return positive - scores[:, 1 - self._positive] if scores.shape[-1] == 2 else positive
