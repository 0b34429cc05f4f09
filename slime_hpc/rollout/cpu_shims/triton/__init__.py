"""Import-only stand-in for triton: SGLang decorates kernels when it is imported, and launches none of them on a CPU.

Every lower-case attribute of a `triton` module is a module again (so that `import triton.x.y` works), every other one a class.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "3.7.1"


class _Placeholder:
    """Base of everything that triton would define as a class."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__()


def _decorate(*args, **kwargs):
    """`@jit` and `@jit(...)`: the function as it is."""
    if len(args) == 1 and callable(args[0]) and not kwargs:
        return args[0]
    return lambda function: function


class _Module(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__file__ = __file__

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (_Placeholder,), {}) if name[:1].isupper() else importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        return _decorate(*args, **kwargs)

    def __bool__(self):
        return False

    def __mro_entries__(self, bases):
        return (_Placeholder,)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("triton."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        """Nothing to run: attributes are made when they are asked for."""


sys.meta_path.insert(0, _Finder())


class Config(_Placeholder):
    """An autotuning choice: keeps what it is given."""

    def __init__(self, kwargs=None, num_warps=4, num_stages=2, **extra):
        self.kwargs = kwargs or {}
        self.num_warps = num_warps
        self.num_stages = num_stages


def cdiv(a, b):
    """Ceiling of a / b."""
    return -(a // -b)


def next_power_of_2(n):
    """Smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


jit = autotune = heuristics = _decorate


class _Constexpr:
    def __init__(self, value=None):
        self.value = value


language = importlib.import_module("triton.language")
language.constexpr = _Constexpr


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name[:1].isupper():
        return type(name, (_Placeholder,), {})
    return importlib.import_module(f"triton.{name}")
