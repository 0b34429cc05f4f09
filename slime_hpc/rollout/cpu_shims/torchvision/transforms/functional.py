"""Stand-in: every name resolves; calling one raises."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise RuntimeError(f"torchvision stand-in: {name} is not here (text only)")

    return absent
