"""Every limit on the size, depth or number of external data.

``TTMBENCH_LIMITS`` raises or lowers them for a process, such as ``TTMBENCH_LIMITS=text_bytes=5e9,image_pixels=1e8``.
"""

from __future__ import annotations

import os

from ttmbench.errors import UsageError

VARIABLE = "TTMBENCH_LIMITS"
DEFAULTS: dict[str, int] = {
    "yaml_bytes": 1_000_000,  # of a task file or of --config
    "yaml_number": 400,  # characters of a number: reading one takes the square of its length
    "yaml_depth": 50,  # mappings and lists inside one another
    "text_bytes": 2_000_000_000,  # of a JSON, JSON lines or CSV file
    "line_bytes": 32 << 20,  # of a line of JSON lines
    "array_bytes": 16_000_000_000,  # of an npz or safetensors file, unpacked
    "array_ratio": 1_000,  # bytes unpacked for each byte packed, beyond array_free
    "array_free": 256_000_000,  # bytes that need no such ratio: equal scores pack well
    "array_members": 10_000,  # arrays in one file
    "download_bytes": 256 << 30,  # of a file whose size neither its server nor its task file states
    "archive_files": 1_000_000,  # files in an archive
    "archive_bytes": 256 << 30,  # of all files of an archive together
    "archive_ratio": 100,  # bytes unpacked for each byte packed, beyond archive_free
    "archive_free": 64 << 20,  # bytes that need no such ratio
    "image_pixels": 89_000_000,  # width times height; at most 178,000,000, where Pillow refuses
    "image_bytes": 500_000_000,  # of one encoded image
    "image_aspect": 100,  # longer side by shorter side: models scale the shorter one up
    "video_frames": 1_000_000,  # of a video
    "jpeg_scans": 100,  # passes over a JPEG's pixels; encoders write about ten
    "remote_files": 100_000,  # below an address such as s3://bucket/results
    "remote_bytes": 100_000_000_000,  # fetched from there for one command
    "captions": 10_000,  # in a group
    "groups": 10_000_000,  # that a task file may promise
    "rendered_groups": 100_000,  # drawn for one task
    "caption_characters": 100_000,  # of a caption, an id or an image name
    "message_characters": 2_000,  # of one line on the terminal or in results
}
PIXELS_AT_MOST = 178_000_000  # Pillow refuses larger images itself


def limit(name: str) -> int:
    """A limit of `DEFAULTS` as it holds now; UsageError if the environment variable cannot be read."""
    most = DEFAULTS[name]
    for part in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        key, _, value = part.partition("=")
        try:
            number = int(float(value))
        except (ValueError, OverflowError):
            raise UsageError(f"{VARIABLE}: '{part}' is not limit=number") from None
        if key not in DEFAULTS or number < 1:
            raise UsageError(f"{VARIABLE}: '{part}' names no limit above 0; known: {', '.join(DEFAULTS)}")
        if key == "image_pixels" and number > PIXELS_AT_MOST:
            raise UsageError(f"{VARIABLE}: image_pixels can be at most {PIXELS_AT_MOST}")
        if key == name:
            most = number
    return most


def raised_by(name: str) -> str:
    """How a message says what to do about a limit."""
    return f"{VARIABLE}={name}=N raises the limit"
