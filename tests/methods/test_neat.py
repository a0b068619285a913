"""NEAT: the authors' losses restated in float64, and what it must hold on groups."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from support.adapter_inputs import pooled_of
from support.rewrites import FILE, rewrites, sides
from support.training_tasks import WORDS, load, scores_of, training_task

from ttmbench.cli import main
from ttmbench.methods import neat as module
from ttmbench.methods.neat import COLUMNS, neat

RUN = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "4", "--methods", "neat"]


@pytest.fixture
def adapter(tiny_siglip):
    return load(tiny_siglip)


class Published:
    """Batches in float64, caption by caption; every caption is rewritten."""

    def __init__(self, adapter, task):
        self.model, self.losses = copy.deepcopy(adapter.model).double().eval(), []
        self.tokens, self.scale, self.bias = adapter.prepare_captions, float(task.scale), float(task.bias)
        self.gallery = [image / image.norm() for image in task.all_images.double()]
        named = self.model.named_parameters()
        norms = [value.requires_grad_() for name, value in named if name.startswith("text") and "norm" in name]
        self.optimizer = torch.optim.AdamW(norms, lr=2e-4, weight_decay=1e-3)

    def captions(self, texts):
        features = pooled_of(self.model.get_text_features(**self.tokens(list(texts))))
        return features / features.norm(dim=1, keepdim=True)

    def loss(self, texts):
        t, (p, n, r) = self.captions(texts), map(self.captions, zip(*map(sides, texts), strict=True))
        total, every, chosen = 0, range(len(texts)), []
        for i in every:
            says = [(p[i] @ v).item() * (1 - max(0.0, (n[i] @ v).item())) for v in self.gallery]
            chosen.append(self.gallery[says.index(max(says))])
        for i in every:
            answer = torch.stack([t[k] @ chosen[i] / 0.03 for k in every]).softmax(0)
            ahead = max(max(r[i] @ chosen[i] - r[i] @ chosen[j], 0 * t.sum()) for j in every if j != i)
            near, far = (((t[i] - other[i] + 1e-6) ** 2).sum().sqrt() for other in (p, r))
            total = total - (answer * answer.log()).sum() + ahead / 0.07 + 5 * near + 2 - far
        return total / len(texts)

    def batch(self, texts):
        """Scores of all captions before the last step."""
        for _ in range(3):
            features, loss = self.captions(WORDS[:12]).detach(), self.loss(texts)
            self.losses.append(loss.item())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return self.scale * torch.stack(self.gallery) @ features.T + self.bias


def test_losses_and_scores_of_two_batches_as_published(adapter, monkeypatch):
    task = training_task(adapter, groups=4, m=2, n=3, resets=False)
    published, losses, of_loss = Published(adapter, task), [], module.negation_loss
    monkeypatch.setattr(module, "negation_loss", lambda *given: losses.append(of_loss(*given)) or losses[-1])
    steps = list(neat(task, rewrites=rewrites(WORDS[:12]), captions=6))
    assert [len(step.groups) for step in steps] == [2, 2]
    for step in steps:
        scores = published.batch([WORDS[row] for row in task.caption_rows[step.groups].unique().tolist()])
        expected = torch.stack(
            [scores[task.image_rows[group]][:, task.caption_rows[group]] for group in step.groups.tolist()]
        )
        torch.testing.assert_close(step.scores.double(), expected, atol=1e-4, rtol=1e-5)
    found, expected = torch.stack(losses).double().detach(), torch.tensor(published.losses).double()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    assert all((value != task._original[name]).any() for name, value in task.trained.items())


def test_captions_that_are_not_rewritten_are_scored_and_not_trained_on(adapter):
    task = training_task(adapter, groups=3, resets=False)
    steps = list(neat(task, rewrites=rewrites(WORDS[:2]), captions=2))
    assert sorted(int(step.groups) for step in steps if step.updated) == [0]
    assert "2 of 6 captions are rewritten" in task.notes[-1]
    assert scores_of(task, steps).isfinite().all()


def test_lists_of_captions_and_empty_texts_as_in_the_authors_files(tmp_path):
    file = tmp_path / "captions.csv"
    lists = ["['A cat, no dog.', 'No car.']", "['A cat', '']", "['dog', 'car']", "['No cat, a dog.', 'A car.']"]
    file.write_text(",".join(COLUMNS) + "\n" + ",".join(f'"{one}"' for one in lists))
    expected = {"A cat, no dog.": ("A cat", "dog", "No cat, a dog."), "No car.": ("", "car", "A car.")}
    assert module.rewritten(str(file)) == expected


BAD = {
    "captions,pos_captions\na,b\n": "has no column 'neg_captions'",
    ",".join(COLUMNS) + "\n\"['a', 'b']\",['a'],['a'],['a']\n": "row 0 must have equally many texts",
    ",".join(COLUMNS) + "\na,b,c,d\na,b,c,e\n": "'a' is rewritten in two ways",
    ",".join(COLUMNS) + "\n": "has no rows of rewritten captions",
    ",".join(COLUMNS) + "\nelsewhere,a,b,c\n": "has none of the task's",
}


def test_files_that_cannot_be_used_are_refused(tmp_path, capsys):
    file = tmp_path / "captions.csv"
    for text, why in {None: "needs --method_args neat.rewrites=", "": "No such file", **BAD}.items():
        given = [] if text is None else ["--method_args", f"neat.rewrites={file}"]
        if text:
            file.write_text(text)
        assert main([*RUN, *given]) == 2
        assert why in capsys.readouterr().err.splitlines()[-1]


def test_an_edited_file_runs_anew(tmp_path):
    file, found = Path(shutil.copy(FILE, tmp_path)), []
    for edit in ("no a red", "no a red", "no red"):
        file.write_text(file.read_text().replace("no a red", edit))
        assert main([*RUN, "--method_args", f"neat.rewrites={file}", "-o", str(tmp_path / "out")]) == 0
        found.append(len(list(tmp_path.glob("out/*/results_*.json"))))
    assert found == [1, 1, 2]
