"""Stand-in: `from sgl_kernel import name` resolves without a build of the kernels; calling one raises."""

__version__ = "0.0.0+none"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise RuntimeError(f"sgl_kernel.{name}: there is no kernel build on this machine")

    return absent
