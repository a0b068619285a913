"""Train the built-in dual encoder on rendered scenes and write it as a folder of `from_pretrained` files.

    python scripts/train_tiny_clip.py --seed 0 --out model_adapters/assets/tiny_clip

One seed on one machine gives one model: one thread, fp32, and every random choice is drawn from the seed. Training
scenes have the styles in `TRAINING_STYLES` and random streams of their own; no scene of a task and no image in
the tasks' style is ever drawn here.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, PreTrainedTokenizerFast

from ttmbench.data.sources.rendered import (
    COLORS,
    PLACES,
    RELATIONS,
    SHAPES,
    SIZE,
    Look,
    below,
    draw_one,
    draw_two,
    random_looks,
    random_stream,
    render,
)

TRAINING_STYLES = ("clean", "light", "mid")
# The end-of-text id must not be 2: CLIP then takes the position of the largest id instead of the end of the text.
SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
MAX_TOKENS = 16
MEAN, STD = (0.6, 0.6, 0.6), (0.25, 0.25, 0.25)


@dataclass(frozen=True)
class Recipe:
    """What decides about the model, besides the seed; of batches, how many images have which captions."""

    steps: int = 2500  # optimiser steps
    schedule_steps: int = 2500  # steps after which the cosine of the learning rate would reach zero
    pair_families: int = 10_000  # rendered families of two objects in four relations; neighbours have exchanged colours
    single_families: int = 3_000  # rendered families of one object at four sides
    bound: int = 28  # images per batch captioned "a red circle and a blue square"
    bags: int = 32  # images per batch whose caption does not say which object has which attribute
    exchanged: int = 24  # images per batch captioned like `bound`, in pairs that have exchanged colours
    related: int = 24  # images per batch captioned "a red circle left of a blue square", in whole families
    placed: int = 12  # images per batch captioned "a red circle on the left", in whole families
    named: int = 8  # images per batch captioned "a red circle"
    family_weight: float = 0.5  # weight of the loss inside families, whose captions differ only in relation or side
    lr: float = 1e-3  # peak learning rate
    warm_up: int = 200  # steps of linear warm-up
    vision_width: int = 64
    vision_layers: int = 3
    vision_mlp: int = 4
    patch: int = 8
    text_width: int = 64
    text_layers: int = 2
    text_mlp: int = 2
    projection: int = 64
    max_scale: float = 50.0  # upper bound of the temperature's inverse


def vocabulary() -> dict[str, int]:
    """Ids of every word that a caption can hold, training's and the tasks'."""
    phrases = " ".join((*RELATIONS.values(), *PLACES.values(), "a an and thing"))
    return {word: i for i, word in enumerate((*SPECIALS, *sorted({*phrases.split(), *COLORS, *SHAPES})))}


def build_processor() -> CLIPProcessor:
    """A word-level tokenizer, and an image processor for 48-pixel images."""
    ids = vocabulary()
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[(name, ids[name]) for name in ("<bos>", "<eos>")]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", "attention_mask"],
    )
    images = CLIPImageProcessor(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_mean=list(MEAN),
        image_std=list(STD),
    )
    return CLIPProcessor(image_processor=images, tokenizer=fast)


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> CLIPModel:
    """An untrained model."""
    specials = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": recipe.text_width,
        "intermediate_size": recipe.text_width * recipe.text_mlp,
        "num_hidden_layers": recipe.text_layers,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_TOKENS,
        "projection_dim": recipe.projection,
        **specials,
    }
    vision = {
        "hidden_size": recipe.vision_width,
        "intermediate_size": recipe.vision_width * recipe.vision_mlp,
        "num_hidden_layers": recipe.vision_layers,
        "num_attention_heads": 4,
        "image_size": SIZE,
        "patch_size": recipe.patch,
        "projection_dim": recipe.projection,
    }
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=recipe.projection))


@dataclass(frozen=True)
class Pool:
    """Rendered training scenes in families of four: the same objects in all four relations, or at all four sides."""

    pixels: np.ndarray  # uint8 [families, 4, height, width, 3]
    looks: list[tuple[Look, ...]]


def render_pool(n_families: int, n_objects: int, seed: int) -> Pool:
    """Families of scenes; each odd one has the objects of the one before, with exchanged colours."""
    rng = random_stream("training", n_objects, seed)
    pixels = np.empty((n_families, 4, SIZE, SIZE, 3), dtype=np.uint8)
    looks: list[tuple[Look, ...]] = []
    pair = random_looks(rng)
    for family in range(n_families):
        if family % 2:
            pair = Look(pair[1].color, pair[0].shape), Look(pair[0].color, pair[1].shape)
        elif family:
            pair = random_looks(rng)
        for index, relation in enumerate(RELATIONS):
            style = TRAINING_STYLES[below(rng, len(TRAINING_STYLES))]
            if n_objects == 2:
                scene = draw_two(rng, pair, relation, style)
            else:
                scene = draw_one(rng, pair[0], relation, style)
            pixels[family, index] = np.asarray(render(scene))
        looks.append(pair[:n_objects])
    return Pool(pixels, looks)


def bound_caption(looks: tuple[Look, ...]) -> str:
    """A caption in the tasks' own words."""
    return f"{looks[0]} and {looks[1]}"


def bag_caption(rng: np.random.RandomState, looks: tuple[Look, ...]) -> str:
    """A caption that names attributes without saying which object has which."""
    first, second = looks
    parts = (
        [f"a {first.shape}", f"a {second.shape}"],
        [f"a {first.color} thing", f"a {second.color} thing"],
        [f"a {first.shape}", f"a {second.color} thing"],
        [first.color, first.shape, second.color, second.shape],
    )[below(rng, 4)]
    order = sorted(range(len(parts)), key=lambda _: rng.random_sample())
    return " and ".join(parts[index] for index in order)


class Batches:
    """An endless stream of batches; the families of four come first in each."""

    def __init__(self, pairs: Pool, singles: Pool, recipe: Recipe, seed: int) -> None:
        self.pairs, self.singles, self.recipe = pairs, singles, recipe
        self.rng = random_stream("batches", seed)

    def __iter__(self) -> Iterator[tuple[np.ndarray, list[str]]]:
        while True:
            items = [*self._families(), *self._others()]
            yield np.stack([image for image, _ in items]), [caption for _, caption in items]

    def _families(self) -> Iterator[tuple[np.ndarray, str]]:
        for _ in range(self.recipe.related // 4):
            family = below(self.rng, len(self.pairs.looks))
            first, second = self.pairs.looks[family]
            for index, phrase in enumerate(RELATIONS.values()):
                yield self.pairs.pixels[family, index], f"{first} {phrase} {second}"
        for _ in range(self.recipe.placed // 4):
            family = below(self.rng, len(self.singles.looks))
            for index, phrase in enumerate(PLACES.values()):
                yield self.singles.pixels[family, index], f"{self.singles.looks[family][0]} {phrase}"

    def _others(self) -> Iterator[tuple[np.ndarray, str]]:
        for number in range(self.recipe.bound + self.recipe.bags):
            family, flip = below(self.rng, len(self.pairs.looks)), self._flip()
            looks = self.pairs.looks[family][::flip]
            caption = bound_caption(looks) if number < self.recipe.bound else bag_caption(self.rng, looks)
            yield self.pairs.pixels[family, below(self.rng, 4)], caption
        for _ in range(self.recipe.exchanged // 2):
            family, flip = below(self.rng, len(self.pairs.looks)), self._flip()
            for member in (family, family ^ 1):
                yield self.pairs.pixels[member, below(self.rng, 4)], bound_caption(self.pairs.looks[member][::flip])
        for _ in range(self.recipe.named):
            family = below(self.rng, len(self.singles.looks))
            yield self.singles.pixels[family, below(self.rng, 4)], str(self.singles.looks[family][0])

    def _flip(self) -> int:
        """Which object is named first, as the step of a slice."""
        return 1 - 2 * below(self.rng, 2)


def contrastive_loss(scores: torch.Tensor, ids: torch.Tensor, n_families: int, family_weight: float) -> torch.Tensor:
    """CLIP's symmetric cross-entropy over the batch, plus the same inside each leading family of four.

    Scores are logits [images, captions]; captions whose token ids are equal are not negatives of each other.
    """
    target = torch.arange(len(scores))
    equal = (ids[:, None] == ids[None]).all(dim=-1) & (target[:, None] != target)
    scores = scores.masked_fill(equal, -1e4)
    loss = cross_entropy(scores, target) + cross_entropy(scores.T, target)
    blocks = torch.stack([scores[i : i + 4, i : i + 4] for i in range(0, 4 * n_families, 4)])
    target = torch.arange(4).repeat(n_families)
    inner = cross_entropy(blocks.reshape(-1, 4), target)
    inner = inner + cross_entropy(blocks.transpose(1, 2).reshape(-1, 4), target)
    return (loss + family_weight * inner) / 2


def to_pixel_values(images: np.ndarray) -> torch.Tensor:
    """What the image processor makes of images that already have the right size."""
    values = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255.0
    mean, std = (torch.tensor(numbers)[None, :, None, None] for numbers in (MEAN, STD))
    return (values - mean) / std


def build_optimizer(model: CLIPModel, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW that decays matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.98))


def train(recipe: Recipe, seed: int, pools: tuple[Pool, Pool], tokenizer: PreTrainedTokenizerFast) -> CLIPModel:
    """Train a model from scratch on pools of pairs and singles."""
    torch.manual_seed(seed)
    model = build_model(recipe, tokenizer).train()
    optimizer = build_optimizer(model, recipe)
    n_families = recipe.related // 4 + recipe.placed // 4
    batches = iter(Batches(*pools, recipe, seed))
    for step in range(recipe.steps):
        images, captions = next(batches)
        cosine = 0.5 * (1 + math.cos(math.pi * step / recipe.schedule_steps))
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * min(1.0, (step + 1) / recipe.warm_up) * cosine
        tokens = tokenizer(captions, padding=True, return_tensors="pt")
        scores = model(pixel_values=to_pixel_values(images), **tokens).logits_per_image
        loss = contrastive_loss(scores, tokens["input_ids"], n_families, recipe.family_weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(recipe.max_scale))
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} of {recipe.steps}, loss {loss.item():.3f}", flush=True)
    return model.eval()


CARD = """# {name}

A CLIP dual encoder of {n_parameters:,} parameters for the built-in tasks of ttmbench, small enough to be scored and
adapted on a processor in seconds. It loads with `CLIPModel`, `AutoTokenizer`, `AutoImageProcessor` and
`AutoProcessor` of transformers.

Made on a processor from random weights in {steps} steps, without any download, by

    python scripts/train_tiny_clip.py --seed {seed} --out model_adapters/assets/{name}

- **Trained on** rendered scenes only: {n_images:,} images of one or two coloured shapes in the styles
  {styles}, and captions from templates. It has seen no photograph, no other text,
  no scene of a task and no image in the style of the tasks.
- **Knows** {n_words} words, in lower case: eight shapes, eight colours, and what it takes to say where they are. Every
  other word is `<unk>`.
- **Meant for** trying out and testing the benchmark. It says nothing about photographs.

The documentation of the built-in tasks, `docs/builtin.md`, says more.
"""


def save(model: CLIPModel, processor: CLIPProcessor, recipe: Recipe, seed: int, out: Path) -> None:
    """Write weights, configs, tokenizer and a model card."""
    model.save_pretrained(out)
    processor.save_pretrained(out)
    # AutoImageProcessor also accepts processor_config.json alone, but other readers look for a file of its own.
    processor.image_processor.save_pretrained(out)
    # Weights are written for their owner only; everybody who can read the repository may read them.
    (out / "model.safetensors").chmod(0o644)
    card = CARD.format(
        name=out.name,
        n_parameters=sum(p.numel() for p in model.parameters()),
        seed=seed,
        steps=recipe.steps,
        n_images=4 * (recipe.pair_families + recipe.single_families),
        styles=", ".join(f'"{style}"' for style in TRAINING_STYLES),
        n_words=len(vocabulary()) - len(SPECIALS),
    )
    (out / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    """Render, train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of scenes, weights and batches (default: 0)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="fewer for a trial (default: %(default)s)")
    args = parser.parse_args()
    # More threads would add in another order, and give slightly other weights on another machine's core count.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recipe = Recipe(steps=args.steps)
    tokenizer = build_processor().tokenizer
    pools = render_pool(recipe.pair_families, 2, args.seed), render_pool(recipe.single_families, 1, args.seed)
    print(f"rendered {4 * sum(len(pool.looks) for pool in pools)} images", flush=True)
    model = train(recipe, args.seed, pools, tokenizer)
    # A new processor, because a tokenizer that has padded writes the padding into its file.
    save(model, build_processor(), recipe, args.seed, args.out)


if __name__ == "__main__":
    main()
