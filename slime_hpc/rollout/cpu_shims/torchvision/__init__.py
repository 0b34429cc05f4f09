"""Stand-in: SGLang imports parts of torchvision at module level; serving text calls none of them."""

__version__ = "0.28.0"
