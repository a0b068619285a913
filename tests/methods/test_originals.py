"""Methods against the authors' repositories; each test is skipped without a clone that a variable names.

``NNN_REPOSITORY``: multimodal-interpretability/nnn at cea80de5. ``QB_NORM_REPOSITORY``: ioanacroi/qb-norm at 76d4d907.
``TENT_REPOSITORY``: DequanWang/tent at e9e926a6. ``EATA_REPOSITORY``: mr-eggplant/EATA at f739b366.
``SAR_REPOSITORY``: mr-eggplant/SAR at 20f6e24b. ``TPT_REPOSITORY``: azshue/TPT at 63ecbace.
``ZERO_REPOSITORY``: FarinaMatteo/zero at c609f7c2. ``MTA_REPOSITORY``: MaxZanella/MTA at cafafdfa.
``WATT_REPOSITORY``: Mehrdad-Noori/WATT at 40e3faeb. ``NEAT_REPOSITORY``: hhc1997/NEAT at 735f7665.
"""

from __future__ import annotations

import copy
import importlib
import math
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from support.adapter_inputs import pooled_of
from support.method_tasks import BIAS, SCALE, feature_task, view_task
from support.norm_towers import NormTowers, batches_of, copied, norms_of, plain_logits, vector_task
from support.rewrites import rewrites, sides
from support.training_tasks import WORDS, load, training_task
from torch.nn.functional import normalize

from ttmbench.methods import tent as tent_file
from ttmbench.methods.dis import dis
from ttmbench.methods.dn import dn
from ttmbench.methods.mta import mta
from ttmbench.methods.neat import neat
from ttmbench.methods.nnn import nnn
from ttmbench.methods.parameters import parameters_of
from ttmbench.methods.tent import tent
from ttmbench.methods.tpt import tpt
from ttmbench.methods.views import view_logits
from ttmbench.methods.watt import watt
from ttmbench.methods.zero import zero
from ttmbench.model_adapters import hf
from ttmbench.model_adapters._shared.contrastive import normalised

DATA = "data data.datautils data.imagenet_prompts data.cls_to_names clip clip.custom_clip utils utils.tools utils.misc"
DATA += " clip.cocoop data.imagnet_prompts data.fewshot_datasets data.imagenet_variants"
AdamW = torch.optim.AdamW


@pytest.fixture
def original(monkeypatch):
    """Imports a module of a clone, without the data sets and models that it imports itself."""

    def imported(variable, module, without=""):
        folder = os.environ.get(variable)
        if not folder:
            pytest.skip(f"{variable} names no clone")
        for name in without.split():
            stub = ModuleType(name)
            stub.__getattr__ = lambda name: [] if name == "__all__" else None
            monkeypatch.setitem(sys.modules, name, stub)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(torch.jit, "script", lambda function: function)  # deprecated, and only for speed
        package = module.rpartition(".")[0]
        if without and package:  # not its own `__init__`, which imports more
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
            sys.modules[package].__path__ = [str(Path(folder) / package)]
        for name in [name for name in sys.modules if name == module or name.startswith(f"{module.partition('.')[0]}.")]:
            monkeypatch.delitem(sys.modules, name)
        return importlib.import_module(module)

    return imported


def in_place(found):
    """Values of the best items and their positions, both [queries, items] -> values in the order of items."""
    values, positions = found
    return np.take_along_axis(values, positions.argsort(axis=1), axis=1)


@pytest.mark.parametrize("k", [3, 12])
def test_nnn(original, k):
    retriever = original("NNN_REPOSITORY", "nnn.nnn_retriever").NNNRetriever(8)
    task = feature_task(6, 2, 3)
    sides = ("i2t", task.all_images, task.captions, task.images), ("t2i", task.all_captions, task.images, task.captions)
    for direction, references, items, queries in sides:
        scores = nnn(task, k=k, direction=direction, references="task")
        for group in range(6):
            means = torch.from_numpy(retriever.compute_alignment_means(items[group], references, k, 128))
            found = in_place(retriever.retrieve(items[group], queries[group], len(items[group]), 0.75, means, 128))
            own = scores[group] if direction == "i2t" else scores[group].mT
            np.testing.assert_allclose(own, SCALE * found + BIAS, atol=1e-5)


@pytest.mark.parametrize("strength", [0.25, 0.5])
def test_dn(original, strength):
    library = original("NNN_REPOSITORY", "nnn")
    task = feature_task(6, 2, 3)
    scores = dn(task, strength=strength, references="task")
    all_images, all_captions = task.all_images.numpy(), task.all_captions.numpy()
    for group in range(6):
        ranker = library.DNRanker(
            library.NNNRetriever(8),
            task.captions[group].numpy(),
            all_images,
            alternate_ks=1,
            alternate_weight=0,
            retrieval_dev_embeds=all_captions,
            query_dev_embeds=all_images,
            dn_lambda=strength,
        )
        found = in_place(ranker.search(task.images[group].numpy(), 3))
        np.testing.assert_allclose(scores[group], SCALE * found + BIAS, atol=1e-5)


@pytest.mark.parametrize("beta", [20.0, 5.0])
def test_dis(original, beta):
    library = original("QB_NORM_REPOSITORY", "dynamic_inverted_softmax")
    task = feature_task(6, 2, 3)
    scores = dis(task, beta=beta, direction="i2t", references="task")
    for group in range(6):
        captions = task.captions[group].double().numpy()
        bank = task.all_images.double().numpy() @ captions.T
        own = task.images[group].double().numpy() @ captions.T
        # k as large as the bank's rows: every caption is retrieved by some of its images, so all rows are normalised.
        found = library.qb_norm(bank.copy(), own.copy(), {"k": 3, "beta": beta})
        np.testing.assert_allclose(scores[group], SCALE / beta * np.log(found) + BIAS, atol=1e-5)


LR, SHAPE = 0.5, (24, 2, 2)


class Images(torch.nn.Module):
    """Positions of images -> scores with the captions of each one's group: a classifier, as the originals take it."""

    def __init__(self, model, task):
        super().__init__()
        self.model, self.task = model, task
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in norms_of(model):
            parameter.requires_grad_(True)

    def forward(self, positions):
        return torch.stack([plain_logits(self.model, self.task, int(one) // 2)[int(one) % 2] for one in positions])


def both(scale, seed=0, **settings):
    """Steps of ours, its task, the same weights as a classifier, and the positions of the images of each batch."""
    model = NormTowers(scale=scale, seed=seed)
    classifier = Images(copied(model), vector_task(model, SHAPE))
    task = vector_task(model, SHAPE)
    batches = [[2 * group + i for group in groups for i in range(2)] for groups in batches_of(task, 6)]
    turns = tent(task, direction="i2t", images=6, **settings)
    return turns, task, classifier, map(torch.tensor, batches)


def same(step, outputs, task, classifier):
    assert torch.allclose(step.scores.flatten(0, 1), outputs, rtol=0, atol=1e-9)
    ours = task.adapter.state_dict()
    for name, value in classifier.model.state_dict().items():
        assert torch.allclose(ours[name], value, rtol=0, atol=1e-8), name


def test_tent(original):
    library = original("TENT_REPOSITORY", "tent")
    turns, task, classifier, batches = both(10, lr=LR)
    optimizer = torch.optim.Adam(norms_of(classifier.model), lr=LR, betas=(0.9, 0.999), weight_decay=0)
    for step, batch in zip(turns, batches, strict=True):
        same(step, library.forward_and_adapt(batch, classifier, optimizer), task, classifier)


def test_eta(original):
    """Without the test of redundancy, which needs the answers of earlier batches."""
    library = original("EATA_REPOSITORY", "eata")
    turns, task, classifier, batches = both(14, seed=1, filter="eta", lr=LR)
    optimizer = torch.optim.Adam(norms_of(classifier.model), lr=LR)
    for step, batch in zip(turns, batches, strict=True):
        margin = 0.4 * math.log(2)
        outputs, kept, _, _ = library.forward_and_adapt_eata(batch, classifier, optimizer, None, margin, None)
        same(step, outputs, task, classifier)
        assert kept == int(torch.cat(tent_file.reliable(tent_file.entropies(step.scores, "i2t"), 0.4)).sum())


@pytest.mark.parametrize(("recovery", "resets"), [(0.0, 0), (0.2 / math.log(2), 24 * 2 // 6)])
def test_sar(original, monkeypatch, recovery, resets):
    """At a threshold of 0.2, which is written in its code, it resets after each batch; its average begins anew."""
    library, sam = (original("SAR_REPOSITORY", name) for name in ("sar", "sam"))
    monkeypatch.setattr(tent_file, "RECOVERY", recovery)
    turns, task, classifier, batches = both(25, seed=2, filter="sar", lr=LR * 64 / 6)
    make = lambda: sam.SAM(norms_of(classifier.model), torch.optim.SGD, lr=LR, momentum=0.9)  # noqa: E731
    first, optimizer, average, found = copied(classifier.model).state_dict(), make(), None, 0
    for step, batch in zip(turns, batches, strict=True):
        outputs, average, reset = library.forward_and_adapt_sar(
            batch, classifier, optimizer, 0.4 * math.log(2), 0.2, average
        )
        if reset and recovery:
            found, average, optimizer = found + 1, None, make()
            classifier.model.load_state_dict(first)
        same(step, outputs, task, classifier)
        assert average is None or float(task.state["average"]) == pytest.approx(average, abs=1e-9)
    assert found == resets == int(task.state.get("resets", 0))


@pytest.mark.filterwarnings("ignore:.*autocast:FutureWarning", "ignore:.*CUDA is not available:UserWarning")
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", ["tiny_hf_clip", "tiny_siglip"])
def test_tuned_shifts_and_scores(original, monkeypatch, request, name, steps):
    """One image, whose context is tuned, as published."""
    library = original("TPT_REPOSITORY", "tpt_classification", DATA)
    task = training_task(load(request.getfixturevalue(name)), groups=3, m=1, n=3)
    views, made = task.views(64, 0.5, False), []
    monkeypatch.setattr(torch.optim, "AdamW", lambda shifts, **how: made.append(shifts[0]) or AdamW(shifts, **how))
    for step in tpt(task, direction="i2t", steps=steps):
        shift = torch.zeros(4, task.caption_width, requires_grad=True)
        rows, features = task.caption_rows[step.groups], views[task.image_rows[step.groups]]

        def model(features, shift=shift, rows=rows):
            return view_logits(task, features, task.encode_captions(rows, shift))[0, 0]

        scaler = SimpleNamespace(scale=lambda loss: loss, step=lambda optimizer: optimizer.step(), update=lambda: None)
        args = SimpleNamespace(cocoop=False, tta_steps=steps, selection_p=0.1)
        library.test_time_tuning(model, features, AdamW([shift], 5e-3), scaler, args)
        torch.testing.assert_close(made[-1], shift, atol=1e-6, rtol=0)
        with torch.no_grad():
            torch.testing.assert_close(model(features)[:1], step.scores[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("captions", [2, 4])
def test_zero(original, monkeypatch, captions):
    module = original("ZERO_REPOSITORY", "ttas.zero", DATA)
    monkeypatch.setattr(module, "greedy_break", lambda ties, logits, device: pytest.fail("votes tie"))
    task = view_task(20, 2, captions, spread=0.5)
    votes, views = zero(task, as_published=True), task.views(64, 0.5, False)
    compared = 0
    for group in range(20):
        model = SimpleNamespace(get_text_features=lambda group=group: task.captions[group], temp=1 / SCALE)
        model.get_image_features = lambda views: views
        for image, row in enumerate(task.image_rows[group].tolist()):
            best = votes[group, image].sort(descending=True).values
            if best[0] == best[1]:  # which the original breaks by position
                continue
            theirs = module.Zero.__new__(module.Zero)
            torch.nn.Module.__init__(theirs)
            theirs.set_hyperparams()
            theirs.model, compared = model, compared + 1
            assert torch.equal(theirs.zero(views[row])[0], votes[group, image])
    assert compared > 30


@pytest.mark.filterwarnings("ignore")  # of half precision without an accelerator
@pytest.mark.parametrize(("captions", "spread"), [(2, 0.3), (4, 0.1), (3, 0.8)])
def test_mta(original, captions, spread):
    solve = original("MTA_REPOSITORY", "mta").solve_mta
    task = view_task(10, 2, captions, spread=spread)
    scores, views = mta(task), task.views(64, 0.5, False)
    for group in range(10):
        for image, row in enumerate(task.image_rows[group].tolist()):

            def model(inputs, features, group=group):
                return inputs, task.captions[group], torch.tensor(SCALE)

            found = solve(model, views[row], SimpleNamespace(lambda_y=0.2, lambda_q=4))[0] + BIAS
            np.testing.assert_allclose(scores[group, image], found, atol=SCALE * 2e-6)


KNOWN = ("{}", "the {}", "the {} at the top")  # words of the small models' tokenizers


class Clip(torch.nn.Module):
    """The adapter's towers with the names that the original calls."""

    def __init__(self, adapter) -> None:
        super().__init__()
        self.towers = copy.deepcopy(adapter.model).eval().requires_grad_(False)
        self.scale = float(adapter._scale_and_bias()[0])

    def encode_image(self, pixels):
        return pooled_of(self.towers.get_image_features(pixel_values=pixels))

    def forward(self, pixels, captions, text_ensemble):
        images = normalize(self.encode_image(pixels), dim=1)
        return self.scale * captions @ images.T, images, captions


@pytest.mark.parametrize("variant", ["sequential", "parallel"])
@pytest.mark.parametrize(("kind", "size"), [("clip", 3), ("siglip", 8)])
def test_weights_after_all_rounds(original, tiny_siglip, kind, size, variant):
    """One group is a batch whose classes are its captions."""
    adapter = hf.load(pretrained="tiny_clip", device="cpu") if kind == "clip" else load(tiny_siglip)
    task, model = training_task(adapter, groups=1, m=size, n=size), Clip(adapter)
    # With one pseudo-caption for all, the original steps along rounding noise, and ttmbench makes no step.
    assert len(set(task.scores[0].argmax(dim=1).tolist())) > 1
    texts = torch.stack(
        [adapter.encode_captions(adapter.prepare_captions([one.format(x) for x in WORDS[:size]])) for one in KNOWN]
    ).detach()
    parameters = dict(model.named_parameters())
    names = list(parameters_of(adapter, "norm_images"))
    trained = [parameters[f"towers.{name}"].requires_grad_() for name in names]
    library = original("WATT_REPOSITORY", "adapt.watt", DATA).WATT
    theirs = library.__new__(library)
    theirs.model, theirs.type, theirs.l, theirs.m, theirs.device = model, variant, 2, 5, "cpu"
    theirs.all_templates, theirs.extract_text_embeddings = KNOWN, lambda *given, **how: texts
    theirs.optimizer = torch.optim.Adam(trained, lr=1e-4, betas=(0.9, 0.999), weight_decay=0.0)
    theirs.model_state, theirs.optimizer_state = theirs.copy_model_and_optimizer(model, theirs.optimizer)
    pixels = normalised(task._prepared.images["pixel_values"], adapter._scale)
    theirs.perform_adaptation(pixels, WORDS[:size])
    (step,) = watt(task, wrappers=KNOWN, variant=variant)
    for name, value in zip(names, trained, strict=True):
        assert (value != task._original[name]).any()
        torch.testing.assert_close(task.trained[name].detach(), value.detach(), atol=2e-5, rtol=0)
    with torch.no_grad():
        images = normalize(model.encode_image(pixels), dim=1)
        expected = task.logits(images, normalize(texts.mean(dim=0), dim=1))
    torch.testing.assert_close(step.scores[0], expected, atol=1e-4, rtol=1e-5)


def test_steps_of_neat(original, tiny_siglip):
    """The losses and the choice of images are the authors' functions."""
    theirs = original("NEAT_REPOSITORY", "src.train_TTA", "ddp tqdm")
    task = training_task(load(tiny_siglip), groups=2, m=2, n=3, resets=False)
    (step,) = neat(task, rewrites=rewrites(WORDS[:6]), steps=4)
    adapter = load(tiny_siglip)
    gallery, tokens = normalize(task.all_images, dim=1), adapter.prepare_captions
    trained = list(parameters_of(adapter, "norm_captions").values())
    optimizer = AdamW(trained, lr=2e-4, weight_decay=1e-3)
    for _ in range(4):
        t, p, n, r = (
            adapter.train_captions(tokens(side)) for side in zip(*((x, *sides(x)) for x in WORDS[:6]), strict=True)
        )
        images = theirs.coarse_aligning_t2i(t, p, n, gallery)[0]
        loss = theirs.softmax_entropy((t @ images.T).T / 0.03).mean(0)
        loss = loss + theirs.semantics_reversion_loss(r @ images.T, 0.07) + theirs.textual_triplet_loss(t, p, r)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for mine, value in zip(task.trained.values(), trained, strict=True):
        torch.testing.assert_close(mine.detach(), value.detach(), atol=2e-6, rtol=0)
    assert step.loss == pytest.approx(loss.item(), abs=1e-4)
    captions = t.detach()[task.caption_rows[step.groups]]
    torch.testing.assert_close(step.scores, task.logits(task.images[step.groups], captions), atol=1e-4, rtol=1e-5)
