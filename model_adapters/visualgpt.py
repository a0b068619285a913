"""VisualGPTScore (arXiv:2306.01879): how likely a generative model finds the caption, given the image."""

from __future__ import annotations

from ttmbench.model_adapters._shared.captioners import Blip2Captioner, BlipCaptioner, ChatCaptioner
from ttmbench.model_adapters._shared.captioning import CaptionModel
from ttmbench.model_adapters._shared.image_text import load_image_text, refuse_chat_arguments
from ttmbench.model_adapters._shared.options import VisualGptOptions, takes
from ttmbench.model_adapters._shared.pretrained import find, load_config, load_part, load_weights, locate

__all__ = ["load", "locate"]


@takes(VisualGptOptions)
def load(asked: VisualGptOptions) -> CaptionModel:
    """Loads a generative model from the hub or a folder: BLIP, BLIP-2, or one with a chat template.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
        UsageError: the model cannot write captions, or an argument is wrong.
    """
    import transformers

    found = find(asked)
    known = {
        "blip": (transformers.BlipForConditionalGeneration, BlipCaptioner),
        "blip-2": (transformers.Blip2ForConditionalGeneration, Blip2Captioner),
    }
    family = load_config(found).model_type
    if family not in known:
        return ChatCaptioner(load_image_text(found, asked), asked)
    refuse_chat_arguments(asked)
    kind, adapter = known[family]
    model = load_weights(kind, found)
    parts = load_part(transformers.AutoTokenizer, found), load_part(transformers.AutoImageProcessor, found)
    return adapter(model, *parts, asked, found.files)
