"""Stand-in: every name resolves; calling one raises."""

from torchvision.transforms.functional import __getattr__  # noqa: F401
