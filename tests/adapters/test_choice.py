"""Forced choices of local chat models: answers are those of the model's own greedy generation."""

from __future__ import annotations

import json
import shutil

import jsonschema
import pytest
import torch
from PIL import Image
from support.adapter_inputs import groups_of, knowing_options, own_model
from support.documents import schema

from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.model import ChoiceQuestion
from ttmbench.model_adapters import choice as chat_choice
from ttmbench.testing import check_adapter

SLOW = "qwen3_vl smolvlm internvl".split()  # asked as others are
KINDS = ["llava", "qwen2_vl", "idefics3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)]
GROUPS = 2
SCALE = 18.0  # of random weights: answers of smaller ones hardly depend on the question


@pytest.fixture
def readable(tiny_vlm, tmp_path):
    """Makes a tiny model each of whose words is written as an option, so that its answers can be read."""

    def make(kind: str, template: tuple[str, str] | None = None) -> str:
        folder = tmp_path / kind
        shutil.copytree(tiny_vlm(kind, scale=SCALE), folder)
        file = folder / "tokenizer.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        sayings = (("^[A-Ma-m].*$", "A) first"), (r"^(?!A\) first).*$", "B) second"))
        document["decoder"] = {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"Regex": word}, "content": said} for word, said in sayings],
        }
        file.write_text(json.dumps(document), encoding="utf-8")
        if template:
            said = folder / "chat_template.jinja"
            assert template[0] in said.read_text(encoding="utf-8")
            said.write_text(said.read_text(encoding="utf-8").replace(*template), encoding="utf-8")
        return str(folder)

    return make


def run(folder, tmp_path, *options, model_args="max_tokens=4", groups=GROUPS):
    """The public command on a task of 2x2 groups: exit code, results, samples."""
    out = tmp_path / "out" / "x.json"
    words = ["--model", "choice", "--model_args", f"pretrained={folder},{model_args}", "--tasks", "shapes_color"]
    words += f"--limit {groups} --bootstrap_iters 20 --device cpu --log_samples --overwrite always -o".split()
    words.append(str(out))
    code = main([*words, *options])
    if code:
        return code, None, None
    document = json.loads(out.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    (samples,) = out.parent.rglob("*.jsonl")
    return code, document, [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]


def own_answers(folder, samples, max_tokens):
    """[(answer of the model itself, answer in the samples)]: by its own template, processor and generation."""
    model, processor = own_model(folder)
    pairs = []
    for group, line in zip(groups_of("shapes_color", len(samples)), samples, strict=True):
        assert line["group_id"] == group.group_id and len(line["answers"]) % 4 == 0
        for asked in line["answers"]:
            side, number = asked["question"].split()
            shown = [int(number) - 1] if side == "image" else asked["order"]
            images = [{"type": "image", "image": group.images[index].open().convert("RGB")} for index in shown]
            inputs = processor.apply_chat_template(
                [{"role": "user", "content": [*images, {"type": "text", "text": asked["prompt"]}]}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
            tokens = model.generate(**inputs, do_sample=False, max_new_tokens=max_tokens)
            text = processor.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)[0]
            pairs.append((text.strip(), asked["answer"]))
    return pairs


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_a_run_are_those_of_the_model_itself(kind, tiny_vlm, tmp_path):
    folder = tiny_vlm(kind, scale=SCALE)
    code, document, samples = run(folder, tmp_path, model_args="max_tokens=5")
    assert code == 0
    pairs = own_answers(folder, samples, 5)
    assert [ours for _, ours in pairs] == [own for own, _ in pairs]
    assert len(pairs) == 4 * GROUPS
    for side in (slice(0, 2), slice(2, 4)):  # which caption, which image
        asked = [own for start in range(0, len(pairs), 4) for own, _ in pairs[start : start + 4][side]]
        assert len(set(asked)) > 1, f"answers depend on the question: {asked}"
    assert document["model_info"]["capabilities"] == ["ChoiceModel"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_constrained_answer_is_the_option_whose_token_comes_first(kind, tiny_vlm, tmp_path):
    alike = chat_choice.load(pretrained=str(tiny_vlm(kind, scale=SCALE)), device="cpu", constrained=True)
    with pytest.raises(UsageError, match="do not tell the options A, B apart"):  # which are unknown words there
        alike.answer([ChoiceQuestion("Which?", [Image.new("RGB", (48, 48))], ("A", "B"))])
    folder = knowing_options(tiny_vlm(kind, scale=SCALE), tmp_path / "model")
    chooser = chat_choice.load(pretrained=str(folder), device="cpu", constrained=True)
    questions = []
    for group in groups_of("shapes_color", 2):
        first, second = (image.open() for image in group.images)
        questions += [
            ChoiceQuestion(f"Does this show {group.captions[0]} or {group.captions[1]}?", [first], ("A", "B")),
            ChoiceQuestion(f"Which is {group.captions[1]}?", [first, second], ("first", "second")),
        ]
    answers = chooser.answer(questions)
    assert len(set(answers)) > 1
    for question, answer in zip(questions, answers, strict=True):
        inputs = chooser.chat.show_several(question.prompt, question.images)
        with torch.inference_mode():
            logits = chooser.model(**inputs).logits[0, -1]
        tokens = [chooser.chat.tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in question.options]
        assert answer == question.options[int(logits[tokens].argmax())]


def test_an_old_transformers_is_refused_for_chat_models(tiny_vlm, monkeypatch):
    monkeypatch.setattr("transformers.__version__", "5.20.1")
    with pytest.raises(DataError, match=r"5\.21") as caught:
        chat_choice.load(pretrained=str(tiny_vlm("llava")), device="cpu")
    assert caught.value.exit_code == 4


def one_error(capsys) -> str:
    told = capsys.readouterr().err.splitlines()
    lines = [line for line in told if line.startswith("ttmbench")]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize("kind", ["llava", "paligemma"])
def test_a_model_without_a_chat_template_is_one_clear_error(kind, tiny_vlm, tmp_path, capsys):
    folder = tmp_path / "mute"
    shutil.copytree(tiny_vlm(kind), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    code, _, _ = run(folder, tmp_path)
    assert code != 0 and "has no chat template" in one_error(capsys)


def test_a_template_for_one_image_needs_them_joined(readable, tmp_path, capsys):
    """One that shows the first image only, and one that refuses a second."""
    once = "{% if part['type'] == 'image' %}{% if loop.first %}<image>\n{% endif %}"
    begin = "{% if part['type'] == 'image' %}"
    refusal = begin + "{% if loop.index == 2 %}{{ raise_exception('one image, please') }}{% endif %}{% endif %}"
    for change, says in (
        ((f"{begin}<image>\n", once), "cannot be shown 2 images"),
        ((begin, refusal + begin), "one image, please"),
    ):
        folder = readable("llava", change)
        code, _, _ = run(folder, tmp_path)
        error = one_error(capsys)
        assert code != 0 and says in error and "side_by_side=true" in error
        assert run(folder, tmp_path, model_args="max_tokens=2,side_by_side=true")[0] == 0
        capsys.readouterr()
        shutil.rmtree(folder)


def test_generation_settings_of_the_model_do_not_count(readable, tmp_path):
    folder = readable("llava")
    plain = run(folder, tmp_path)[2]
    file = tmp_path / "llava" / "generation_config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    settings |= {"do_sample": True, "temperature": 5.0, "top_k": 7, "repetition_penalty": 9.0, "max_length": 3}
    file.write_text(json.dumps(settings), encoding="utf-8")
    assert run(folder, tmp_path)[2] == plain


def test_an_answer_ends_where_the_model_ends_it(tiny_vlm):
    """The token that ends an answer ends it, and special tokens are not part of its text."""
    adapter = chat_choice.load(pretrained=str(tiny_vlm("llava")), device="cpu", max_tokens=12)
    question = ChoiceQuestion("Does this image present (A) a red circle?", [Image.new("RGB", (48, 48), (200, 30, 30))])
    assert "the number of questions changes no answer" in check_adapter(adapter)
    (whole,) = adapter.answer([question])
    own = adapter.chat.tokenizer
    adapter.chat.model.generation_config.eos_token_id = own.convert_tokens_to_ids(whole.split()[0])
    (cut,) = adapter.answer([question])
    assert cut == whole.split()[0] != whole


def test_the_record_says_what_was_asked_and_how(readable, tmp_path):
    code, document, _ = run(
        readable("llava"), tmp_path, "--dtype", "bf16", model_args="max_tokens=4,weights_dtype=bf16"
    )
    declared = document["model_info"]["fingerprint"]
    assert code == 0 and declared["dtype"] == declared["weights"] == "bfloat16"
    assert declared["max_tokens"] == 4 and declared["decoding"] == "greedy" and declared["order"] == "random"
    assert declared["prompt"] == "USER: <image>\n{question} ASSISTANT:"
