"""VQAScore (arXiv:2404.01291): how likely a model is to say yes when it is asked whether an image shows a caption.

Models with a chat template, BLIP-2 and InstructBLIP, with the prompts of their papers (arXiv:2301.12597, section 4.1;
arXiv:2305.06500 as t2v_metrics has it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from ttmbench._util.images import about_frames
from ttmbench.errors import UsageError
from ttmbench.model import UndecidedPairs
from ttmbench.model_adapters._shared.contrastive import PIXELS, on_device
from ttmbench.model_adapters._shared.decisions import Decisions
from ttmbench.model_adapters._shared.image_text import (
    EncodedImage,
    ImageTextModel,
    PreparedImage,
    PromptedModel,
    Row,
    SeenImage,
    load_image_text,
    padded,
    refuse_chat_arguments,
    refuse_old_transformers,
)
from ttmbench.model_adapters._shared.options import VqascoreOptions, takes
from ttmbench.model_adapters._shared.pair_model import COARSE, TrainablePairModel
from ttmbench.model_adapters._shared.pretrained import (
    LoadedModel,
    Pretrained,
    check_size,
    find,
    load_part,
    load_whole,
    locate,
    pick_device,
    tokenizer_digest,
    untrainable,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CLASSES = {"blip-2": "Blip2ForConditionalGeneration", "instructblip": "InstructBlipForConditionalGeneration"}
ASKED_QUERIES = "qformer_"  # prefix in a row: tokens of the question that InstructBLIP's queries read
WRITTEN = "decoder_input_ids"


class QFormerModel(PromptedModel):
    """BLIP-2 or InstructBLIP with a language model."""

    answer = "yes"

    def __init__(self, loaded: LoadedModel, device: torch.device) -> None:
        super().__init__(loaded, device)
        self._translates = not self.model.config.use_decoder_only_language_model
        self._reads_question = self.model.config.model_type == "instructblip"

    @property
    def declared(self) -> dict[str, object]:
        """Entries of a fingerprint beside those of every model."""
        if not self._reads_question:
            return {}
        return {"qformer_tokenizer_sha256": tokenizer_digest(self.processor.qformer_tokenizer)}

    def ask(self, question: str, images: int = 1) -> str:
        """The prompt after which the model answers, whose image is not a part of the text."""
        if self._reads_question:
            return f"Question: {question}"
        return f"Question: {question} Short answer:" if self._translates else f"Question: {question} Answer:"

    def with_caption(self, instruction: str, caption: str) -> str | None:
        """The question continued by an answer; None for encoder-decoders."""
        return None if self._translates else f"{self.ask(instruction)} {caption}"

    def prepare(self, images: Sequence[Image]) -> list[PreparedImage]:
        """Preprocesses each image once."""
        pixels = self.processor.image_processor(images=list(images), return_tensors="pt")[PIXELS]
        return [PreparedImage(image, None, {PIXELS: row[None]}) for image, row in zip(images, pixels, strict=True)]

    def row(self, image: PreparedImage, prompt: str) -> Row:
        """A prompt's tokens; the image's queries come before them."""
        if prompt not in image.rows:
            row = self._tokens(self.tokenizer, prompt)
            if self._reads_question:
                asked = self._tokens(self.processor.qformer_tokenizer, prompt)
                row |= {f"{ASKED_QUERIES}{name}": value for name, value in asked.items()}
            if self._translates:
                row[WRITTEN] = torch.tensor([self.model.config.text_config.decoder_start_token_id])
            image.rows[prompt] = row
        return image.rows[prompt]

    def continued(self, row: Row, ids: Sequence[int]) -> Row:
        """A prompt's tokens followed by tokens of the model's own text."""
        tokens = torch.tensor(ids, dtype=row["input_ids"].dtype)
        more = (
            {WRITTEN: tokens} if self._translates else {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        )
        return {**row, **{name: torch.cat([row[name], value]) for name, value in more.items()}}

    def _encoded(self, image: PreparedImage) -> EncodedImage:
        pixels = on_device(image.features[PIXELS], self.device).to(self.model.dtype)
        return EncodedImage(self.model.vision_model(pixel_values=pixels).last_hidden_state, {})

    def last_logits(self, seen: Sequence[EncodedImage], rows: Sequence[Row], count: int) -> torch.Tensor:
        """Next-token logits after the last ``count`` tokens of every row, float32 [rows, count, vocabulary]."""
        tokens = on_device(padded(rows, self._pad), self.device)
        queries = self._queries(torch.cat([image.output for image in seen]), tokens)
        words = self.model.get_input_embeddings()(tokens["input_ids"])
        shown = torch.ones(queries.shape[:2], dtype=torch.long, device=self.device)
        inputs: dict[str, torch.Tensor] = {
            "inputs_embeds": torch.cat([queries.to(words.dtype), words], dim=1),
            "attention_mask": torch.cat([shown, tokens["attention_mask"]], dim=1),
        }
        if self._translates:
            output = self.model.language_model(**inputs, decoder_input_ids=tokens[WRITTEN], use_cache=False)
            return cast(torch.Tensor, output.logits[:, -count:].float())
        states = self.model.language_model.base_model(**inputs, use_cache=False).last_hidden_state
        ends = inputs["attention_mask"].sum(dim=1)  # rows are padded on the right
        places = ends[:, None] + torch.arange(-count, 0, device=self.device)
        wanted = states.gather(1, places[:, :, None].expand(-1, -1, states.shape[-1]))
        return cast(torch.Tensor, self.model.get_output_embeddings()(wanted).float())

    def _queries(self, states: torch.Tensor, tokens: Row) -> torch.Tensor:
        """The language model's input for each image, [rows, queries, width]."""
        model = self.model
        queries = model.query_tokens.expand(len(states), -1, -1)
        count = queries.shape[1]
        options: dict[str, torch.Tensor] = {}
        if self._reads_question:
            mask = tokens[f"{ASKED_QUERIES}attention_mask"]
            options["input_ids"] = tokens[f"{ASKED_QUERIES}input_ids"]
            options["attention_mask"] = torch.cat([mask.new_ones(len(states), count), mask], dim=1)
        read = model.qformer(query_embeds=queries, encoder_hidden_states=states, **options).last_hidden_state[:, :count]
        return model.language_projection(read.to(model.language_projection.weight.dtype))

    def _pad(self, name: str) -> int:
        if not name.endswith("input_ids"):
            return 0
        owner = self.processor.qformer_tokenizer if name.startswith(ASKED_QUERIES) else self.tokenizer
        return int(owner.pad_token_id or 0)

    @staticmethod
    def _tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> Row:
        tokens = tokenizer(prompt, return_tensors="pt")
        return {name: tokens[name][0] for name in ("input_ids", "attention_mask")}


def load_qformer(pretrained: Pretrained, family: str, device: torch.device) -> QFormerModel:
    """Loads BLIP-2 or InstructBLIP, a key of `CLASSES`; DataError for its weights, UsageError if it writes no text."""
    import transformers

    processor = load_part(transformers.AutoProcessor, pretrained)
    refuse_old_transformers()
    loaded = load_whole(getattr(transformers, CLASSES[family]), pretrained, processor)
    if loaded.model.get_output_embeddings() is None:
        raise UsageError(f"{pretrained.files.name} has no language model that could answer")
    if hasattr(processor, "qformer_tokenizer"):
        check_size(processor.qformer_tokenizer, loaded.model.config.qformer_config.vocab_size, pretrained.files.name)
    return QFormerModel(loaded, device)


__all__ = ["VQAScore", "load", "locate"]
_STARTS = ("", "▁", "Ġ")  # how vocabularies write a space before a word


@takes(VqascoreOptions)
def load(asked: VqascoreOptions) -> VQAScore:
    """Loads a model with a chat template, BLIP-2 or InstructBLIP, from the Hub or a folder; errors as for `hf.load`."""
    import transformers

    pretrained = find(asked)
    family = load_part(transformers.AutoConfig, pretrained).model_type
    if family not in CLASSES:
        return VQAScore(load_image_text(pretrained, asked), asked)
    refuse_chat_arguments(asked)
    return VQAScore(load_qformer(pretrained, family, torch.device(pick_device(asked.device))), asked)


class VQAScore(TrainablePairModel):
    """A model that is asked about pairs, as an adapter."""

    prepares_in_threads = True

    def __init__(self, chat: ImageTextModel | QFormerModel, asked: VqascoreOptions) -> None:
        super().__init__(chat.loaded, asked)
        self.chat, self.score, self.template = chat, asked.score, asked.template
        if self.score != "log_odds":
            self.not_logits = f"score={self.score} gives probabilities; use --model_args score=log_odds"
        self.answer_prefix = asked.answer_prefix
        self.shows_frames = isinstance(chat, ImageTextModel) and bool(chat.processor.chat_template)
        self.decisions = Decisions()
        self.yes, self.no = answer_tokens(chat.tokenizer, "yes"), answer_tokens(chat.tokenizer, "no")
        self._answer = self._answer_alone() if asked.score in ("yes_token", "yes_and_end") else []
        self.lora = None if asked.lora is None else (asked.lora, asked.lora_targets)
        if self.lora is not None:
            if asked.peft is not None and not asked.merge:
                raise UsageError(
                    "lora trains factors of its own; with peft it needs merge=true, or train=adapter instead"
                )
            add_lora(self.model, *self.lora)
            self.state_sha256, self.untrainable = None, untrainable(self.model)  # the state is the factors
        elif self.untrainable == COARSE:
            self.untrainable += " or lora=16"

    def fingerprint(self) -> Mapping[str, object]:
        """As for every pair model, the question, and the tokens that count as its answers."""
        extra: dict[str, object] = {"answer_ids": self._answer} if self._answer else {}
        if self.lora is not None:
            extra |= {"lora_rank": self.lora[0], "lora_targets": self.lora[1]}
        return {
            **super().fingerprint(),
            "score": self.score,
            "prompt": self._prompt(self.template),
            "yes_tokens": self.yes,
            "no_tokens": self.no,
            "image_processor": type(self.chat.processor.image_processor).__name__,
            **self.chat.declared,
            **extra,
        }

    def save(self, folder: Path) -> None:
        """Weights and processor, as ``from_pretrained`` loads them; LoRA factors are added to the weights."""
        self.loaded.save(folder, **({} if self.lora is None else {"state_dict": merged_state(self.model)}))

    def prepare_images(self, images: Sequence[Image]) -> list[PreparedImage]:
        """The processor's own preprocessing of each image."""
        return self.chat.prepare(images)

    def prepare_captions(self, captions: Sequence[str]) -> list[str]:
        """The prompts that ask for each caption; the image decides how many tokens it takes in them."""
        return [self._prompt(self.template.replace("{caption}", caption)) for caption in captions]

    def encode_images(self, prepared: Sequence[PreparedImage]) -> list[SeenImage]:
        """Each image with the vision encoder's output."""
        self.model.eval()
        with self.arithmetic():
            return list(zip(prepared, self.chat.see(prepared), strict=True))

    def score_prepared(self, images: Sequence[SeenImage], captions: Sequence[str]) -> np.ndarray:
        """The score as it was asked for, float32 [pairs]."""
        logs = self._log_probabilities(images, captions, self._answer)
        answers = self._yes_no(logs)
        if self._answer:  # the geometric mean over its tokens; of one token its probability
            chosen = torch.stack([logs[:, position, token] for position, token in enumerate(self._answer)])
            chosen = chosen.mean(dim=0).exp()
        else:
            chosen = answers[:, 0] - answers[:, 1] if self.score == "log_odds" else answers[:, 0].exp()
        rows = [chosen, answers.exp().sum(dim=1), logs[:, 0].argmax(dim=-1)]
        scores, masses, first = torch.stack([row.float() for row in rows]).cpu().numpy()
        for mass, token in zip(masses.tolist(), first.tolist(), strict=True):
            self.decisions.add(mass, str(self.chat.tokenizer.convert_ids_to_tokens(int(token))))
        return scores

    def take_undecided(self) -> UndecidedPairs:
        """Pairs since the last call, and those for which yes and no are improbable."""
        return self.decisions.take()

    def pair_loss(self, images: Sequence[PreparedImage], captions: Sequence[str], matched: np.ndarray) -> torch.Tensor:
        """Cross-entropy, over the vocabulary, of yes for pairs that match and no for others; UsageError in fp16."""
        self.check_trainable()
        self.model.train()
        with self.arithmetic():
            seen = list(zip(images, self.chat.see(images), strict=True))
        answers = self._yes_no(self._log_probabilities(seen, captions, []))
        wanted = torch.from_numpy(np.where(matched, 0, 1)).to(self.device, non_blocking=True)
        return -answers.gather(1, wanted[:, None]).mean()

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """The trained tensors: all weights, or the LoRA factors."""
        if self.lora is None:
            return super().state_dict()
        return {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores a state."""
        self.model.load_state_dict(state, strict=self.lora is None)

    def _prompt(self, question: str) -> str:
        """The prompt that shows an image, or the frames of a video, and asks."""
        return self.chat.ask(about_frames(self.frames) + question, self.frames) + self.answer_prefix

    def _answer_alone(self) -> list[int]:
        """The token "Yes" after the prompt ("yes" of BLIP-2), and the one that ends it if that counts too."""
        ids = self.chat.answer_ids(self.chat.answer)
        if ids is None or len(ids) != 1:
            raise UsageError(
                f"score={self.score}: '{self.chat.answer}' is not a single token after the prompt of {self.name}; "
                "score=probability sums every token that says yes"
            )
        return ids + ([int(self.chat.tokenizer.eos_token_id)] if self.score == "yes_and_end" else [])

    def _log_probabilities(
        self, images: Sequence[SeenImage], prompts: Sequence[str], answer: list[int]
    ) -> torch.Tensor:
        """Of every token after the prompt, and after each token of the answer but the last [pairs, places, words]."""
        rows = [
            self.chat.continued(self.chat.row(image, prompt), answer[:-1])
            for (image, _), prompt in zip(images, prompts, strict=True)
        ]
        with self.arithmetic():
            logits = self.chat.last_logits([seen for _, seen in images], rows, max(1, len(answer)))
        return logits.log_softmax(dim=-1)

    def _yes_no(self, logs: torch.Tensor) -> torch.Tensor:
        """Log P(yes) and log P(no) of the first token, float32 [pairs, 2]."""
        sides = [torch.tensor(list(side.values())).to(logs.device, non_blocking=True) for side in (self.yes, self.no)]
        return torch.stack([logs[:, 0, tokens].logsumexp(dim=-1) for tokens in sides], dim=1)


def answer_tokens(tokenizer: PreTrainedTokenizerBase, word: str) -> dict[str, int]:
    """Every single token for a word, after a space and capitalised or not: token -> id; UsageError without any."""
    vocabulary = tokenizer.get_vocab()
    tokens: dict[str, int] = {}
    for form in (word.capitalize(), word.lower()):
        for text in (form, f" {form}"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
                tokens[str(tokenizer.convert_ids_to_tokens(ids[0]))] = int(ids[0])
        tokens |= {start + form: int(vocabulary[start + form]) for start in _STARTS if start + form in vocabulary}
    if not tokens:
        raise UsageError(f"this model's vocabulary has no single token for '{word}', so its answer cannot be read off")
    return dict(sorted(tokens.items()))


def add_lora(model: PreTrainedModel, rank: int, targets: str) -> None:
    """Adds LoRA factors, scaled by 2, to the layers whose full names match ``targets``; nothing else stays trainable.

    The same model gets the same factors, and no score changes. UsageError without peft, or if no layer matches.
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


def merged_state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights with the LoRA factors merged into them."""
    state = {
        name.replace(".base_layer", ""): tensor for name, tensor in model.state_dict().items() if "lora_" not in name
    }
    for name, module in model.named_modules():
        if hasattr(module, "get_delta_weight"):
            weight = state[f"{name}.weight"]
            state[f"{name}.weight"] = weight + module.get_delta_weight("default").to(weight.dtype)
    return state
