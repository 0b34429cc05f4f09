"""The chain of weight versions: what each one holds, which one it follows, and which must be applied to come from one to another. Pure.

A version is full, or a delta on the one before. Versions are told apart by an id of their publication as well as by number: a trainer that
resumes publishes a number again, and a delta on the old one must not be applied to the new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from slime_hpc.errors import DeltaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One publication of one version."""

    version: int
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """One tensor of a version, or of a delta the change of one."""

    checksum: str
    """Of the tensor's bytes once the version is applied; `chunks.checksum`."""
    itemsize: int
    """Bytes of an element."""
    file: str
    offset: int = 0
    """Delta: where the changes begin in `file`."""
    lengths: tuple[int, ...] = ()
    """Delta: bytes of the encoded change of each chunk; 0 where it did not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a version's folder holds."""

    link: Link
    base: Link | None
    """The version that the delta follows; None: the version is full."""
    encoding: str
    """A name of `encoding.ENCODINGS`; empty where the version is full."""
    files: dict[str, int]
    """Files, with their sizes in bytes."""
    tensors: dict[str, TensorRecord]
    """Full: every tensor; delta: those that changed."""

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The inverse of `to_json`. Raises DeltaError when the text is damaged."""
        try:
            value: dict[str, Any] = json.loads(text)
            base = value["base"]
            return cls(
                link=Link(**value["link"]),
                base=Link(**base) if base else None,
                encoding=str(value["encoding"]),
                files=dict(value["files"]),
                tensors={
                    name: TensorRecord(**{**record, "lengths": tuple(record["lengths"])}) for name, record in value["tensors"].items()
                },
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DeltaError(f"A manifest of weights is damaged: {error}.") from error


def path(head: Link, held: Link | None, read: Callable[[int], Manifest]) -> list[Manifest]:
    """What must be applied to come from `held` to `head`, in order; from a full version on where `held` is none of the chain.

    `read` gives the manifest of a version number. Raises DeltaError when the chain is broken.
    """
    steps: list[Manifest] = []
    link: Link | None = head
    while link is not None and link != held:
        manifest = read(link.version)
        if manifest.link != link:
            follower = f"version {steps[-1].link.version} follows" if steps else "is asked for"
            raise DeltaError(
                f"Version {link.version} of the weights is publication {manifest.link.id} of version {manifest.link.version}, "
                f"not {link.id}, which {follower}."
            )
        if any(step.link == link for step in steps):
            raise DeltaError(f"Version {link.version} of the weights follows on itself.")
        steps.append(manifest)
        link = manifest.base
    return steps[::-1]
