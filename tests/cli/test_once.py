"""Options of which the last alone would count, and objects that are no adapter."""

from __future__ import annotations

import pytest
import torch

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import UsageError

TWICE = {
    "-M a -M b -t shapes_color": "-M is given twice (a and b): one run has one model; run the command once for each",
    "--model a --model=b -t shapes_color": "--model is given twice (a and b): one run has one model",
    "-M tiny-clip -t shapes_color -t shapes_place": "-t is given twice (shapes_color and shapes_place): separate names",
    "-M hf -a pretrained=x -a revision=y -t x": "-a is given twice (pretrained=x and revision=y): separate arguments",
    "-M tiny-clip -t x --ttm_args lr=1 --ttm_args epochs=2": "is given twice (lr=1 and epochs=2): separate settings",
    "-M tiny-clip -t x -o a -o b": "-o is given twice (a and b): a run writes to one location",
    "doctor -M tiny-clip -M blip-itm": "-M is given twice (tiny-clip and blip-itm): separate names by commas",
}


@pytest.mark.parametrize("command", TWICE)
def test_an_option_that_is_given_twice_is_an_error(command, capsys):
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert TWICE[command] in err and err.count("\n") == 1, err


def test_the_same_value_twice_is_none(capsys):
    options = ["-M", "tiny-clip", "-M", "tiny-clip", "-t", "shapes_color", "--limit", "2", "--bootstrap_iters", "0"]
    assert main(options) == 0


def test_a_bare_model_of_transformers_gets_the_call_that_works():
    transformers = pytest.importorskip("transformers")
    text = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9}
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.CLIPConfig(text_config=text, vision_config={**vision, "image_size": 8, "patch_size": 8})
    model = transformers.CLIPModel(config)
    with pytest.raises(UsageError) as caught:
        ttmbench.simple_evaluate(model, "shapes_color")
    assert str(caught.value).startswith(
        "model CLIPModel: CLIPModel is a model of transformers and no adapter, since it comes without its "
        "preprocessing; give simple_evaluate('hf', ..., model_args={'pretrained': 'FOLDER'})"
    )


@pytest.mark.parametrize("given", [torch.nn.Linear(2, 2), object(), 3, {"model": 1}])
def test_another_object_is_sent_to_the_page_on_adapters(given):
    with pytest.raises(UsageError, match=r"can neither score pairs .*; docs/add-an-adapter\.md shows how to wrap"):
        ttmbench.simple_evaluate(given, "shapes_color")


def test_a_part_of_open_clip_gets_the_call_that_works():
    kind = type("CLIP", (torch.nn.Module,), {"__module__": "open_clip.model"})
    with pytest.raises(UsageError, match=r"CLIP is a model of open_clip and no adapter.*simple_evaluate\('open_clip'"):
        ttmbench.simple_evaluate(kind(), "shapes_color")


def test_validate_shows_the_traceback_if_asked(folder_task, monkeypatch, capsys):
    import sys
    from types import SimpleNamespace

    def read(request):
        return request.options["colours"]

    monkeypatch.setitem(sys.modules, "evil_source", SimpleNamespace(read=read))
    from ttmbench import SourceSpec, hookimpl

    made = type(
        "Made", (), {"ttmbench_register_sources": hookimpl(lambda self: [SourceSpec("evil", "evil_source:read")])}
    )
    point = SimpleNamespace(name="evil", value="evil:plugin", dist=None, load=lambda: made())
    monkeypatch.setattr("ttmbench.plugins.manager.entry_points", lambda group: [point])
    task = str(folder_task(source={"kind": "evil"}, group={"shape": [2, 2]}) / "mine.yaml")
    for verbosity, shown in (("info", False), ("debug", True)):
        assert main(["validate", task, "--verbosity", verbosity]) == 4
        out, err = capsys.readouterr()
        assert "source 'evil' of plugin 'evil' failed: KeyError: 'colours' (test_once.py, line" in out
        assert ('return request.options["colours"]' in err) is shown
