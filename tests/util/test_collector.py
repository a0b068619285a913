"""The collector of garbage is as it was, whatever happens inside."""

from __future__ import annotations

import gc
import sys
import textwrap
from types import SimpleNamespace

import pytest
from support import processes

from ttmbench._util.collector import SELDOM, seldom_collecting
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.hookspecs import hookimpl
from ttmbench.plugins.registry import build_registry
from ttmbench.types import AdapterSpec


class Model:
    def score_pairs(self, images, captions):
        raise NotImplementedError


class Plugin:
    @hookimpl
    def ttmbench_register_adapters(self):
        return [AdapterSpec("seldom", "ttmbench_seldom:load")]


def test_the_collector_is_put_back():
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collecting():
        assert gc.get_threshold()[0] == SELDOM > before[0]
        raise KeyError
    assert gc.get_threshold() == before


def test_the_collector_is_put_back_by_the_last_of_several_threads():
    before = gc.get_threshold()
    one, other = seldom_collecting(), seldom_collecting()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold()[0] == SELDOM
    other.__exit__(None, None, None)
    assert gc.get_threshold() == before


@pytest.mark.parametrize("own", [0, SELDOM * 2])
def test_a_program_that_collects_when_it_wants_to_goes_on_so(own):
    before = gc.get_threshold()
    gc.set_threshold(own, *before[1:])
    try:
        with seldom_collecting():
            assert gc.get_threshold()[0] == own
    finally:
        gc.set_threshold(*before)


def in_a_small_process(program: str) -> None:
    """Where nothing is frozen, and few objects are there to be looked at: a suite has frozen a million."""
    head = "import gc, weakref\nfrom ttmbench._util.collector import SELDOM, seldom_collecting\n"
    done = processes.run(["-c", head + textwrap.dedent(program)], cold=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_was_made_inside_is_old_and_garbage_of_it_is_still_found():
    in_a_small_process(
        """
        class Kept:
            pass

        with seldom_collecting():
            kept, circle, many = Kept(), Kept(), [Kept() for _ in range(SELDOM)]
            circle.self, gone = circle, weakref.ref(circle)
            del circle
        assert any(one is kept for one in gc.get_objects(generation=2)) and len(many) == SELDOM
        assert gc.get_freeze_count() == 0 and gone() is not None
        gc.collect()
        assert gone() is None
        """
    )


def test_what_a_program_froze_stays_frozen():
    in_a_small_process(
        """
        gc.freeze()
        before = gc.get_freeze_count()
        with seldom_collecting():
            many = [[] for _ in range(2 * SELDOM)]
        assert gc.get_freeze_count() >= before - 100 > 0 and many  # what was freed since is none
        """
    )


def test_a_model_is_made_while_it_collects_seldom(monkeypatch):
    before, seen = gc.get_threshold(), []

    def load():
        seen.append(gc.get_threshold()[0])
        return Model()

    monkeypatch.setitem(sys.modules, "ttmbench_seldom", SimpleNamespace(load=load))
    make_adapter(build_registry(extra=[("mine", Plugin())]), "seldom", {}, {})
    assert seen == [SELDOM] and gc.get_threshold() == before


def test_what_a_program_froze_is_counted_once():
    in_a_small_process(
        """
        gc.freeze()
        kept, counted, count = [], [], gc.get_freeze_count
        gc.get_freeze_count = lambda: counted.append(1) or count()
        for _ in range(3):
            with seldom_collecting():
                kept.append([[] for _ in range(2 * SELDOM)])
        assert len(counted) == 1 and gc.get_freeze_count() > 0
        """
    )
