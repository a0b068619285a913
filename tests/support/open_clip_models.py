"""Random models of open_clip's as adapters, without files."""

from __future__ import annotations

import torch

from support import tiny_models


def open_clip_model(kind: str):
    """A random CLIP of open_clip's, or a SigLIP with a tower of timm's, as an adapter without files."""
    import open_clip

    from ttmbench.model_adapters._shared.contrastive import ContrastiveModel

    class Model(ContrastiveModel[torch.Tensor]):
        def prepare_images(self, images):
            return torch.rand(len(images), 3, side, side, generator=torch.Generator().manual_seed(0))

        def prepare_captions(self, captions):
            return torch.tensor([[len(caption) + position for position in range(20)] for caption in captions])

        def _image_features(self, inputs):
            return self.model.encode_image(inputs)

        def _caption_features(self, inputs):
            return self.model.encode_text(inputs)

    torch.manual_seed(0)
    text = {"width": 32, "layers": 2, "heads": 2, "context_length": 20, "vocab_size": 60}
    if kind == "clip":
        side, model = 32, open_clip.CLIP(24, tiny_models.OPEN_CLIP["vision_cfg"], text)
    else:
        vision = {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "map", "timm_proj": "none"}
        text |= {"width": 64, "no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
        side, model = 160, open_clip.CustomTextCLIP(64, vision, text, init_logit_bias=-5)
    return Model(model, device="cpu", dtype="fp32")
