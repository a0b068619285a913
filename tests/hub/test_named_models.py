"""Models finetuned for compositionality, and further tags, by the ordinary command from copies of their releases."""

from __future__ import annotations

import json

import pytest
import torch
from support import family_copies
from support.commands import run_commands
from support.family_copies import BY_HAND, NAMES, REFUSED
from support.hub_runs import LIMIT, WEIGHTS, check_done, write_copies
from support.hub_server import HubServer

RAW = f"--tasks shapes_color --limit {LIMIT} --device cpu --bootstrap_iters 0 --use_cache off"
TTM = f"{RAW} --ttm --ttm_args iterations=1,epochs=1"
FORMATS = ("negclip", "dac-llm", "clove", "read-clip", "siglip2-so400m")  # every name scores in the slow test
FETCHED = ("fsc-clip-lora-laioncoco-l14", "clic-clipa-l14-pixelprose")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The folder of the runs, what each command printed, and the weights that a stand-in for the Hub sent."""
    root = tmp_path_factory.mktemp("named")
    names = {*FORMATS, *FETCHED}
    write_copies(root / "hub", ["openai/clip-vit-base-patch32", family_copies.OPENAI])
    write_copies(root / "hub", [family_copies.repository_of(NAMES[name]) for name in family_copies.CODED])
    write_copies(root / "hub", [family_copies.repository_of(NAMES[name]) for name in names if name not in BY_HAND])
    for name in names & {*BY_HAND}:
        torch.save(family_copies.file_content(name), root / f"{name}.pt")
    commands = {name: f"--model {name} {_given(root, name)} {TTM} -o {root / name}.json" for name in FORMATS}
    commands |= {name: f"download --model {name}" for name in FETCHED}
    commands |= {f"no {name}": f"--model {name} {TTM}" for name in [*BY_HAND, *REFUSED]}
    commands |= {f"no download of {name}": f"download --model {name}" for name in family_copies.CODED}
    with HubServer(root / "hub") as hub:
        architectures = family_copies.write_architectures(root / "architectures")
        environment = {**hub.environment(root), "TTMBENCH_TEST_ARCHITECTURES": str(architectures)}
        done = run_commands(list(commands.values()), environment, root)
        sent = [name for name in hub.fetched("models/") if name.endswith((*WEIGHTS, ".pt"))]
        return root, dict(zip(commands, done, strict=True)), sent


def _given(root, name):
    return f"--model_args pretrained={root / name}.pt" if name in BY_HAND else ""


def test_names_are_fetched_at_their_commits(world):
    _, done, sent = world
    check_done([done[name] for name in FETCHED])
    fetched = [name for name in (*FORMATS, *FETCHED) if name not in BY_HAND]
    assert len(sent) == len({*sent}) == len(fetched) + 1  # OpenAI's for CLoVe; none of those that need code
    for name in FETCHED:
        assert f"at {NAMES[name].model_args.get('revision', '')}" in done[name].out, done[name].out


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_scored_and_trained(world, name):
    root, done, _ = world
    check_done([done[name]])
    document = json.loads((root / f"{name}.json").read_text(encoding="utf-8"))
    info, card = document["model_info"], NAMES[name].card
    assert card is not None and info["fingerprint"].get("quick_gelu") is card.quick_gelu
    trained_on = None if card.trained_on is None else list(card.trained_on)
    assert info["trained_on"] == trained_on and "GELU" not in done[name].err
    assert "group_match,ttm" in document["results"]["shapes_color"]
    beside = {"clove": [family_copies.OPENAI], "read-clip": ["openai/clip-vit-base-patch32"]}
    assert [other["name"] for other in info["source"].get("beside", [])] == beside.get(name, [])


def test_what_is_downloaded_by_hand_or_needs_code_is_one_line(world):
    _, done, _ = world
    for name in [*BY_HAND, *REFUSED]:
        one, card = done[f"no {name}"], NAMES[name].card
        assert one.code in (2, 4) and len(one.err.strip().splitlines()) == 1 and card is not None, one.err
        if name in BY_HAND:
            assert f"download {card.weights} from {card.page} and give --model_args pretrained=FILE" in one.err
        else:
            instead = ("adapter", "--trust_remote_code", "sentence-transformers 6")
            assert any(word in one.err for word in instead), one.err
    for name in family_copies.CODED:
        one = done[f"no download of {name}"]
        assert one.code == 4 and len(one.out.splitlines()) == 1 and "--trust_remote_code" in one.out, one


def test_activations_are_those_of_the_releases():
    """By the name of the architecture, by an argument, or by the tag; a file without any is asked about."""
    import open_clip

    for name, spec in NAMES.items():
        model, place = str(spec.model_args.get("model")), str(spec.model_args.get("pretrained"))
        if spec.card is None or spec.card.refused or ".open_clip:" not in spec.target or "CLIPA" in model:
            continue
        tag = {} if "/" in place or place == "None" else open_clip.get_pretrained_cfg(model, place)
        quick = model.endswith("-quickgelu") or bool(tag.get("quick_gelu"))
        assert spec.model_args.get("quick_gelu", quick or (False if tag else None)) is spec.card.quick_gelu, name


@pytest.mark.slow
def test_every_name_scores(tmp_path):
    """All that can be loaded, so also files of one repository and repositories of one format."""
    names = [name for name in NAMES if name not in REFUSED]
    write_copies(tmp_path / "hub", ["openai/clip-vit-base-patch32", "google/siglip2-base-patch16-224"])
    write_copies(tmp_path / "hub", family_copies.WRITERS)
    for name in BY_HAND:
        torch.save(family_copies.file_content(name), tmp_path / f"{name}.pt")
    with HubServer(tmp_path / "hub") as hub:
        architectures = family_copies.write_architectures(tmp_path / "architectures")
        environment = {**hub.environment(tmp_path), "TTMBENCH_TEST_ARCHITECTURES": str(architectures)}
        commands = [f"--model {name} {_given(tmp_path, name)} {RAW}" for name in names]
        check_done(run_commands(commands, environment, tmp_path))
