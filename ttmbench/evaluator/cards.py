"""Peak speed of GPUs in each precision, from the manufacturer's data sheets, for advice and estimates of time."""

from __future__ import annotations

import re

SOURCE = "NVIDIA's data sheets"
ASSUMED = {"fp32": 0.75, "tf32": 0.5, "bf16": 0.4, "fp16": 0.4}
"""Share of a card's peak that training a CLIP-style model is assumed to reach; not measured yet."""
# Name of the card, as torch gives it -> peak TFLOP/s of dense products (no sparsity, sums in float32).
_PEAKS: dict[str, dict[str, float]] = {
    r"H100 PCIe": {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756},
    r"H100 80GB HBM3|H200": {"fp32": 67, "tf32": 494, "bf16": 989, "fp16": 989},
    r"A100": {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
    r"A40\b": {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7},
    r"A10\b": {"fp32": 31.2, "tf32": 62.5, "bf16": 125, "fp16": 125},
    r"L40S": {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362},
    r"L4\b": {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121},
    r"RTX 4090\b": {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2},
    r"RTX 3090\b": {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71},
    r"V100-SXM": {"fp32": 15.7, "fp16": 125},
    r"T4\b": {"fp32": 8.1, "fp16": 65},
}


def rate(card: str, dtype: str) -> float | None:
    """Floating-point operations a second that training is assumed to reach; None for an unknown card or precision.

    >>> rate("NVIDIA A100-SXM4-80GB", "tf32"), rate("Tesla T4", "bf16"), rate("AMD Instinct MI300X", "fp32")
    (78000000000000.0, None, None)
    """
    peaks = next((peaks for name, peaks in _PEAKS.items() if re.search(name, card)), {})
    return peaks[dtype] * 1e12 * ASSUMED[dtype] if dtype in peaks else None


def faster_than_fp32(card: str) -> str:
    """Which precisions a card computes faster than float32, and how many times; empty if that is not known.

    >>> faster_than_fp32("NVIDIA H100 80GB HBM3")
    '--dtype bf16 is about 8 and tf32 about 5 times as fast as fp32 on NVIDIA H100 80GB HBM3'
    """
    base, found = rate(card, "fp32"), list[str]()
    for dtype in ("bf16", "fp16", "tf32"):
        other = rate(card, dtype)
        if base and other and other >= 1.5 * base and (dtype != "fp16" or not found):
            found.append(f"{dtype} {'' if found else 'is '}about {other / base:.0f}")
    only = " to score (it cannot train)" if found and found[0].startswith("fp16") else ""
    return f"--dtype {' and '.join(found)} times as fast as fp32 on {card}{only}" if found else ""


def advice(card: str) -> str:
    """`faster_than_fp32` with its source; empty if it is."""
    faster, shares = faster_than_fp32(card), ", ".join(f"{name} {share:.0%}" for name, share in ASSUMED.items())
    return f"{faster}, by {SOURCE} and assumed shares of the peak ({shares}; not measured)" if faster else ""
