"""One version of the weights while it is written: full, or what changed since the last one.

Both keep `base` up to date, the bytes of the version written last, in host memory: it is what the next delta is told from. A version that
was not written to its end leaves `base` half old, half new; the caller must not go on from it. Knows nothing of engines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from slime_hpc.errors import DeltaError
from slime_hpc.sync.buckets import NamedTensor
from slime_hpc.sync.checkpoint_folder import CheckpointFolder, PartialFolder, flush
from slime_hpc.sync.delta import encoding
from slime_hpc.sync.delta.chain import Link, Manifest, TensorRecord
from slime_hpc.sync.delta.chunks import Crew, bytes_of, checksum, digest, slices

MANIFEST = "manifest.json"
Base = dict[str, np.ndarray]
"""Name -> (num_bytes,) of uint8."""


class FullVersion:
    """A checkpoint folder, and its manifest."""

    def __init__(self, path: Path, link: Link, base: Base, crew: Crew) -> None:
        self.link = link
        self.encode_s = 0.0
        self._folder = CheckpointFolder(path)
        self._base = base
        self._crew = crew
        self._records: dict[str, TensorRecord] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes written."""
        return self._folder.num_bytes

    def open(self) -> None:
        """Begin."""
        self._folder.open()

    def write(self, shard: Sequence[NamedTensor]) -> None:
        """One file of tensors."""
        shard = [(name, tensor.detach().cpu()) for name, tensor in shard]
        self._folder.write(shard)
        file = f"model-{self._folder.num_shards:05d}.safetensors"
        start = time.monotonic()
        for name, tensor in shard:
            self._records[name] = TensorRecord(checksum=self._remember(name, bytes_of(tensor)), itemsize=tensor.itemsize, file=file)
        self.encode_s += time.monotonic() - start

    def _remember(self, name: str, new: np.ndarray) -> str:
        old = self._base.get(name)
        if old is None or old.size != new.size:
            old = self._base[name] = np.empty_like(new)

        def remember(part: slice) -> bytes:
            old[part] = new[part]
            return digest(old[part])

        return checksum(self._crew.map(remember, slices(new.size)))

    def publish(self, model: Path) -> None:
        """Put the folder in its place, with the configuration and tokenizer of `model`."""
        for name in self._base.keys() - self._records.keys():
            del self._base[name]
        self._folder.complete(model)
        _publish(self._folder, Manifest(link=self.link, base=None, encoding="", files=_sizes(self._folder), tensors=self._records))


class DeltaVersion:
    """Files of encoded changes, and their manifest."""

    def __init__(self, path: Path, link: Link, base: Base, crew: Crew, *, follows: Link, encoding_name: str) -> None:
        self.link = link
        self.encode_s = 0.0
        self.num_bytes = 0
        self._folder = PartialFolder(path)
        self._base = base
        self._crew = crew
        self._follows = follows
        self._encoding_name = encoding_name
        self._encoding = encoding.load(encoding_name)
        self._records: dict[str, TensorRecord] = {}
        self._seen: set[str] = set()
        self._num_files = 0

    def open(self) -> None:
        """Begin."""
        self._folder.open()

    def write(self, shard: Sequence[NamedTensor]) -> None:
        """One file of the changes of some tensors. Raises DeltaError when a tensor has another size than before."""
        self._num_files += 1
        path = self._folder.partial / f"delta-{self._num_files:05d}.bin"
        with path.open("wb") as file:
            for name, tensor in shard:
                self._write_tensor(name, bytes_of(tensor).view(f"u{tensor.itemsize}"), file)
        flush(path)

    def _write_tensor(self, name: str, new_N: np.ndarray, file: BinaryIO) -> None:
        old = self._base.get(name)
        if old is None or old.size != new_N.nbytes:
            raise DeltaError(f"{name} is not what it was in the version before: it is new, or of another size.")
        old_N = old.view(new_N.dtype)
        per_chunk = [slice(part.start // new_N.itemsize, part.stop // new_N.itemsize) for part in slices(new_N.nbytes)]

        def encode(part: slice) -> tuple[bytes, bytes]:
            blob = self._encoding.encode(old_N[part], new_N[part])
            if blob:
                old_N[part] = new_N[part]
            return blob, digest(old_N[part])

        offset, lengths, digests = file.tell(), [], []
        start, write_s = time.monotonic(), 0.0
        for blob, chunk_digest in self._crew.map(encode, per_chunk):
            wrote = time.monotonic()
            file.write(blob)
            write_s += time.monotonic() - wrote
            lengths.append(len(blob))
            digests.append(chunk_digest)
        self.encode_s += time.monotonic() - start - write_s
        self._seen.add(name)
        self.num_bytes += sum(lengths)
        if any(lengths):
            name_of_file = Path(file.name).name
            self._records[name] = TensorRecord(
                checksum=checksum(digests), itemsize=new_N.itemsize, file=name_of_file, offset=offset, lengths=tuple(lengths)
            )

    def publish(self, model: Path) -> None:
        """Put the folder in its place. Raises DeltaError when a tensor of the version before did not come."""
        if missing := sorted(self._base.keys() - self._seen):
            raise DeltaError(f"{missing[0]} (and {len(missing) - 1} more) did not come with this version of the weights.")
        manifest = Manifest(
            link=self.link, base=self._follows, encoding=self._encoding_name, files=_sizes(self._folder), tensors=self._records
        )
        _publish(self._folder, manifest)


def _sizes(folder: PartialFolder) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(folder.partial.iterdir())}


def _publish(folder: PartialFolder, manifest: Manifest) -> None:
    folder.write_text(MANIFEST, manifest.to_json())
    folder.publish()
