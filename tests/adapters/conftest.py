"""What tests of adapters share."""

from __future__ import annotations

import functools

import pytest


@pytest.fixture(autouse=True, scope="session")
def _merges_once():
    """open_clip's own tokenizer has 49,000 merges; they are read once a process, and have one digest."""
    import open_clip

    from ttmbench.model_adapters import open_clip as adapter

    digest, own = adapter.tokenizer_digest, open_clip.SimpleTokenizer
    once = functools.cache(lambda length: digest(own(context_length=length)))

    def digest_once(tokenizer):
        return once(tokenizer.context_length) if isinstance(tokenizer, own) else digest(tokenizer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(open_clip.factory, "SimpleTokenizer", functools.cache(own))
        patched.setattr(adapter, "tokenizer_digest", digest_once)
        yield
