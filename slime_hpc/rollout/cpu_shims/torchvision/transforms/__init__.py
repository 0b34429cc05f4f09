"""Stand-in for the image transforms."""

from enum import Enum


class InterpolationMode(Enum):
    """Named in default arguments."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


from . import functional  # noqa: E402
