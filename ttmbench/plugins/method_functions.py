"""The built-in test-time methods, by name; each target is one module of `ttmbench.methods`."""

from __future__ import annotations

from functools import partial

from ttmbench.types import MethodSpec

_TTM = "arXiv:2510.07632"
_VIEWS = {
    "views": "64 in the paper's code",
    "share": "10 % in the paper",
    "crop_scale": "0.08 in the paper's code; half of an image, so that objects and relations stay in it",
    "flip": "half of the views in the paper's code; none, since left and right would be exchanged",
}

_STREAM = {
    "clusters": "groups that share images are one unit of the stream, so that no answer is learned before it is given",
    "reset_every": "never in the paper; the control of arXiv:2306.05401",
}

_PROMPTS = {
    **_VIEWS,
    "tokens": "4 context tokens in the paper; here the first ones of each caption",
    "direction": "rows alone (i2t) in the paper, whose classes are shared by all images",
    "lr": "5e-3 in the paper",
    "weight_decay": "AdamW's default, as in the paper's code",
    "steps": "1 in the paper",
}

_of_ttm = partial(
    MethodSpec,
    target="ttmbench.methods.ttm:ttm",
    reference=_TTM,
    needs=("gradients",),
    scope="task",
    reset="never",
    assumes_matching=True,
    takes_ttm_args=True,
)
_control = partial(_of_ttm, reference="", needs=("gradients", "random_labels"))

METHODS: tuple[MethodSpec, ...] = (
    _of_ttm("ttm", summary="Test-Time Matching: trains on the most confident matchings, iteratively"),
    _of_ttm(
        "overfit",
        target="ttmbench.methods.overfit:overfit",
        summary="fine-tunes on the raw model's matchings of all groups (SimpleMatch's second step)",
    ),
    _of_ttm(
        "oracle",
        target="ttmbench.methods.oracle:oracle",
        summary="upper bound: TTM with correct pseudo-labels only (uses labels)",
        needs=("gradients", "labels"),
    ),
    _control(
        "placebo",
        target="ttmbench.methods.controls:placebo",
        summary="control: TTM with random matchings of the selected groups",
    ),
    _control(
        "shuffle",
        target="ttmbench.methods.controls:shuffle",
        summary="control: TTM with pseudo-labels swapped between selected groups",
    ),
    MethodSpec(
        "finetuned",
        "ttmbench.methods.finetuned:finetuned",
        summary="a model finetuned on labelled groups with 'ttmbench finetune'",
        needs=("gradients", "labels"),
        scope="row",
        reset="never",
    ),
    _control(
        "selftrain",
        summary="control: TTM with each image's best caption as pseudo-label, without matching",
        needs=("gradients",),
        assumes_matching=False,
        settings={"pseudo_labels": "argmax"},
    ),
    MethodSpec(
        "dn",
        "ttmbench.methods.dn:dn",
        summary="distribution normalisation: subtracts a fraction of the mean feature",
        reference="arXiv:2302.11084",
        needs=("features", "references"),
        scope="task",
        sources={"strength": "authors' code of arXiv:2302.11084"},
    ),
    MethodSpec(
        "nnn",
        "ttmbench.methods.nnn:nnn",
        summary="nearest-neighbour normalisation: subtracts the mean cosine with the nearest references",
        reference="arXiv:2410.24114",
        needs=("features", "references"),
        scope="task",
        sources={"weight": "README of the authors' code", "k": "README of the authors' code"},
    ),
    MethodSpec(
        "sinkhorn",
        "ttmbench.methods.sinkhorn:sinkhorn",
        summary="logarithm of each group's Sinkhorn plan, a soft matching",
        reference="arXiv:1306.0895",
        sources={"eps": "the model's own temperature"},
        assumes_matching=True,
    ),
    MethodSpec(
        "dual_softmax",
        "ttmbench.methods.dual_softmax:dual_softmax",
        summary="weights a group's scores by a softmax over its images before the softmax over its captions",
        reference="arXiv:2109.04290",
        sources={"direction": "video to text in the paper", "temperature": "the authors' code"},
        assumes_matching=True,
    ),
    MethodSpec(
        "dis",
        "ttmbench.methods.dis:dis",
        summary="inverted softmax: normalises a score by the scores of the references",
        reference="arXiv:2112.12777",
        needs=("features", "references"),
        scope="task",
        sources={"beta": "arXiv:2112.12777"},
    ),
    MethodSpec(
        "tps",
        "ttmbench.methods.tps:tps",
        summary="test-time prototype shifting: shifts caption features to minimise the entropy of confident views",
        reference="arXiv:2403.12952",
        needs=("views", "gradients"),
        reset="group",
        sources={
            **_VIEWS,
            "direction": "rows alone (i2t) in the paper, whose classes are shared by all images",
            "lr": "5e-3 in the paper's code for ImageNet (1e-3 for others)",
            "weight_decay": "AdamW's default, as in the paper's code",
            "steps": "1 in the paper",
        },
    ),
    MethodSpec(
        "tent",
        "ttmbench.methods.tent:tent",
        summary="minimises the entropy of the model's answers, one batch at a time",
        reference="arXiv:2006.10726",
        needs=("features", "gradients"),
        scope="stream",
        reset="never",
        sources={
            "filter": "arXiv:2006.10726 has none; eta: arXiv:2204.02610, sar: arXiv:2302.12400, in units of ln n",
            "direction": "arXiv:2006.10726 has i2t; both treats images and captions of a group alike",
            "train": "as in ports to CLIP; norm layers in arXiv:2006.10726",
            "lr": "arXiv:2006.10726 (Adam); sar: authors' code of arXiv:2302.12400 (SGD, for 64 images)",
            "images": "arXiv:2006.10726, ImageNet",
            **_STREAM,
        },
        order_dependent=True,
        scores_before_update=True,
    ),
    MethodSpec(
        "cliptta",
        "ttmbench.methods.cliptta:cliptta",
        summary="contrastive loss on batches of images and their pseudo-captions",
        reference="arXiv:2507.14312",
        needs=("features", "gradients"),
        scope="stream",
        reset="never",
        sources={
            "labels": "arXiv:2507.14312",
            "as_published_columns": "true in authors' code of arXiv:2507.14312 with a frozen caption tower",
            "beta_reg": "arXiv:2507.14312",
            "steps": "scripts of the authors of arXiv:2507.14312",
            "train": "arXiv:2507.14312",
            "lr": "scripts of the authors of arXiv:2507.14312",
            "images": "arXiv:2507.14312",
            **_STREAM,
        },
        order_dependent=True,
        assumes_matching=True,
    ),
    MethodSpec(
        "tpt",
        "ttmbench.methods.tpt:tpt",
        summary="test-time prompt tuning: shifts captions' first tokens to minimise the entropy of confident views",
        reference="arXiv:2209.07511",
        needs=("views", "gradients", "caption_embeddings"),
        reset="group",
        sources=_PROMPTS,
    ),
    MethodSpec(
        "c_tpt",
        "ttmbench.methods.tpt:tpt",
        summary="calibrated prompt tuning: tpt with a term that disperses the captions of a group",
        reference="arXiv:2403.14119",
        needs=("views", "gradients", "caption_embeddings"),
        reset="group",
        settings={"dispersion": 50.0},
        sources={**_PROMPTS, "dispersion": "50 in the paper for fine-grained classes (20 for ImageNet)"},
    ),
    MethodSpec(
        "zero",
        "ttmbench.methods.zero:zero",
        summary="ZERO: majority vote of each image's most confident views",
        reference="arXiv:2405.18330",
        needs=("views",),
        sources={**_VIEWS, "share": "gamma = 0.3 in the paper's code"},
        gives_logits=False,
    ),
    MethodSpec(
        "vte",
        "ttmbench.methods.vte:vte",
        summary="view ensemble: averages the features of each image's most confident views",
        reference="arXiv:2405.14977",
        needs=("views",),
        scope="row",
        sources={**_VIEWS, "normalise": "not in the paper's code"},
    ),
    MethodSpec(
        "mta",
        "ttmbench.methods.mta:mta",
        summary="MTA: mode of the features of each image's views, by weighted mean shift",
        reference="arXiv:2405.02266",
        needs=("views",),
        scope="row",
        sources={**_VIEWS, **dict.fromkeys(("share", "lambda_y", "lambda_q", "rounds", "steps"), "the paper's code")},
    ),
    MethodSpec(
        "watt",
        "ttmbench.methods.watt:watt",
        summary="trains on pseudo-captions in several wordings and averages the weights",
        reference="arXiv:2406.13875",
        needs=("features", "gradients", "caption_texts"),
        scope="batch",
        reset="batch",
        order_dependent=True,
        sources={
            "wrappers": "for whole captions; the paper has 8 templates for class names",
            **dict.fromkeys(("variant", "steps", "rounds", "temperature", "train", "lr", "images"), "the paper's code"),
        },
    ),
    MethodSpec(
        "neat",
        "ttmbench.methods.neat:neat",
        summary="adapts the caption tower to negation, from captions that a language model has rewritten",
        reference="arXiv:2507.19064",
        needs=("features", "gradients", "caption_texts"),
        scope="task",
        reset="never",
        order_dependent=True,
        sources={
            "rewrites": "Llama 3.1's in the paper; the authors' repository has them for COCO and MSR-VTT",
            "train": "norm layers of the blocks in the authors' code; here the last one too",
            "captions": "README of the authors' code (its default is 64)",
            **dict.fromkeys(
                ("steps", "temperature", "reversal_temperature", "lr", "weight_decay"), "the authors' code"
            ),
            **_STREAM,
        },
    ),
    MethodSpec(
        "rlcf",
        "ttmbench.methods.rlcf:rlcf",
        summary="trains the encoders to prefer the captions and images that a reward model prefers",
        reference="arXiv:2305.18010",
        needs=("features", "gradients", "reward_model"),
        reset="group",
        sources={
            "reward": "a larger CLIP in the paper; of the size of the model in arXiv:2506.24000",
            "direction": "both in the paper, each in its own table",
            "train": "one tower in the paper",
            **dict.fromkeys(("unit", "k_captions", "k_images", "steps", "lr", "weight_decay"), "the paper's code"),
        },
    ),
)
