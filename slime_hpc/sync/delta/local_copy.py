"""A checkpoint on the node's own disk (or in its memory) that is brought from version to version in place; SGLang loads it as any other.

While a version is being applied there is no `state.json`; a process that dies in the midst leaves none, and the next one begins anew from
the newest full version: an engine is never told to load what may be half of one version and half of another. Engines of one node share the
copy: an exclusive lock is held by who changes it, a shared one by everyone who uses it, and the last one removes it.
Knows nothing of engines or HTTP.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np

from slime_hpc.control.endpoint import write_atomic
from slime_hpc.errors import DeltaError
from slime_hpc.sync.delta import chain, encoding
from slime_hpc.sync.delta.chain import Link, Manifest, TensorRecord
from slime_hpc.sync.delta.chunks import Crew, checksum, digest, slices
from slime_hpc.sync.delta.encoding import Encoding
from slime_hpc.sync.delta.writer import MANIFEST

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_HEADER_LENGTH = struct.Struct("<Q")


class LocalCopy:
    """One node's copy of the weights of a run."""

    def __init__(self, folder: Path, weights: Path, *, threads: int) -> None:
        """`folder` is the copy's own, on this node; `weights` that of the run's versions. Raises DeltaError when `folder` is not ours."""
        self.model = folder / "model"
        self.num_bytes = 0
        """Bytes of versions read so far."""
        self._folder = folder
        self._weights = weights
        self._state = folder / "state.json"
        self._crew = Crew(threads)
        self._users = _join(folder)

    def held(self) -> Link | None:
        """The version that the copy holds, whole; None while there is none."""
        try:
            value = json.loads(self._state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return Link(**value["link"]) if value["boot"] == _boot_id() else None

    def catch_up(self, head: Link) -> None:
        """Bring the copy to `head`: by deltas from what it holds, or from the newest full version on.

        Raises DeltaError or OSError when a version is missing, damaged or does not follow, or when the disk is full. The copy then
        holds what it held before, or nothing.
        """
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = self.held()
            try:
                self._follow(head, held)
            except DeltaError:
                # The fault may be the copy's, not the delta's: another error, or the same, comes from the full version.
                if held is None or self.held() == held:
                    raise
                self._follow(head, None)

    def _follow(self, head: Link, held: Link | None) -> None:
        steps = chain.path(head, held, self._manifest)
        for step in steps:
            self._check_sizes(step)
        for step in steps:
            self._state.unlink(missing_ok=True)
            if step.base is None:
                self._take_full(step)
            else:
                self._take_delta(step)
            write_atomic(self._state, json.dumps({"link": asdict(step.link), "boot": _boot_id()}))

    def _source(self, version: int) -> Path:
        return self._weights / f"v{version}"

    def _manifest(self, version: int) -> Manifest:
        path = self._source(version) / MANIFEST
        try:
            return Manifest.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DeltaError(f"Version {version} of the weights is missing.", where=str(path)) from error
        except DeltaError as error:
            raise DeltaError(error.what, where=str(path)) from error

    def _check_sizes(self, manifest: Manifest) -> None:
        for name, size in manifest.files.items():
            path = self._source(manifest.link.version) / name
            found = path.stat().st_size if path.exists() else None
            if found != size:
                words = "is missing" if found is None else f"has {found} bytes instead of {size}"
                raise DeltaError(f"A file of version {manifest.link.version} of the weights {words}.", where=str(path))

    def _take_full(self, manifest: Manifest) -> None:
        source = self._source(manifest.link.version)
        shutil.rmtree(self.model, ignore_errors=True)
        self.model.mkdir(mode=0o700)
        for _ in self._crew.map(lambda name: shutil.copyfile(source / name, self.model / name), manifest.files):
            pass
        self.num_bytes += sum(manifest.files.values())
        targets = _Targets(self.model)
        for name, record in manifest.tensors.items():
            array = targets.bytes_of(name, record.file)
            self._check(name, record, checksum(self._crew.map(lambda part, array=array: digest(array[part]), slices(array.size))), source)  # type: ignore[misc]

    def _take_delta(self, manifest: Manifest) -> None:
        source = self._source(manifest.link.version)
        targets, decode = _Targets(self.model), encoding.load(manifest.encoding)
        with contextlib.ExitStack() as files:
            opened = {name: files.enter_context((source / name).open("rb")).fileno() for name in manifest.files}
            for name, record in manifest.tensors.items():
                array = targets.bytes_of(name)
                if len(record.lengths) != len(slices(array.size)):
                    raise DeltaError(f"A change of {name} is of another size than {name}.", where=str(source / record.file))
                found = self._apply(array, record, opened[record.file], decode, where=str(source / record.file))
                self._check(name, record, found, source)
        self.num_bytes += sum(manifest.files.values())

    def _apply(self, array: np.ndarray, record: TensorRecord, file: int, decode: Encoding, *, where: str) -> str:
        offsets = np.cumsum([record.offset, *record.lengths])

        def apply(item: tuple[slice, int, int]) -> bytes:
            part, length, offset = item
            if length:
                decode.apply(array[part].view(f"u{record.itemsize}"), os.pread(file, length, offset))
            return digest(array[part])

        items = zip(slices(array.size), record.lengths, offsets.tolist(), strict=False)
        try:
            return checksum(self._crew.map(apply, items))
        except DeltaError as error:
            raise DeltaError(error.what, where=where) from error

    def _check(self, name: str, record: TensorRecord, found: str, source: Path) -> None:
        if found != record.checksum:
            raise DeltaError(f"The checksum of {name} is {found}; its version says {record.checksum}.", where=str(source / record.file))

    def close(self) -> None:
        """Stop using the copy; remove it when nobody else does. Safe to call twice."""
        self._crew.close()
        if self._users.closed:
            return
        with self._users, contextlib.suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._folder, ignore_errors=True)


def _join(folder: Path) -> IO[str]:
    """Become a user of the folder: an open file with a shared lock."""
    while True:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_uid != os.getuid():
            raise DeltaError("The folder for a copy of the weights belongs to someone else.", where=str(folder), fix="set sync.delta.local")
        users = (folder / "users").open("w")
        fcntl.flock(users, fcntl.LOCK_SH)
        # The last user may have removed the folder meanwhile.
        if os.fstat(users.fileno()).st_nlink:
            return users
        users.close()


class _Targets:
    """The tensors of a checkpoint's safetensors files, mapped for reading and writing."""

    def __init__(self, model: Path) -> None:
        self._found: dict[str, tuple[str, np.ndarray]] = {}
        for file in sorted(model.glob("*.safetensors")):
            data = np.memmap(file, np.uint8, "r+")
            self._found |= {name: (file.name, data[first:end]) for name, first, end in _layout(file)}

    def bytes_of(self, name: str, file: str | None = None) -> np.ndarray:
        """The bytes of a tensor, which must lie in `file` where that is given. Raises DeltaError when it is not there."""
        found_in, array = self._found.get(name, (None, None))
        if array is None or file not in (None, found_in):
            raise DeltaError(f"The copy of the weights has no {name}.")
        return array


def _layout(file: Path) -> Iterator[tuple[str, int, int]]:
    """Name, first byte and end of each tensor of a safetensors file: eight bytes of length, a JSON header, then the data."""
    with file.open("rb") as opened:
        (length,) = _HEADER_LENGTH.unpack(opened.read(_HEADER_LENGTH.size))
        header = json.loads(opened.read(length))
    data = _HEADER_LENGTH.size + length
    for name, entry in header.items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            yield name, data + first, data + end


def _boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()
