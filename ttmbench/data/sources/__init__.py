"""Readers of raw data into groups: a module for each kind of source, with its reader and the places of its data."""

from __future__ import annotations

from ttmbench.types import SourceSpec

_KINDS = {
    "rendered": "scenes drawn from a seed; no download",
    "folder": "a JSONL, JSON, CSV or TSV file of groups and an image folder",
    "annotations": "a file and images in the data folder",
    "huggingface": "a dataset of the Hugging Face hub",
    "hub_files": "loose files of a repository of the hub",
    "webdataset": "tar files of images with texts, of the hub",
    "first_of": "the first of several sources that is at hand",
    "random_foils": "pairs of another source, beside pairs drawn at random",
    "class_folders": "a folder of images for each class, in the data folder",
    "whatsup": "WhatsUp's photographs, alone or in pairs",
}

SOURCES = tuple(
    SourceSpec(kind, f"{__name__}.{kind}:read_{kind}", summary, needs=f"{__name__}.{kind}:locations")
    for kind, summary in _KINDS.items()
)
