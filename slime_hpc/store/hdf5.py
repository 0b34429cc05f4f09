"""Batches as sealed HDF5 files: one dataset a field, flat values with offsets, published by rename.

A reader never sees a file that is being written: the writer's name is temporary until the file is closed, read back, and on disk.
No variable-length types and no group per sample, which cost kilobytes each; no compression, which costs more time than it saves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from slime_hpc.data.batch import SCHEMA_VERSION, Batch
from slime_hpc.data.collate import offsets
from slime_hpc.errors import DataError

_SCALARS = ("step", "weight_version")
_OPTIONAL = ("routes_TLK",)
_FIELDS = tuple(f.name for f in dataclasses.fields(Batch) if f.name not in _SCALARS)
# Which offsets a flat field is cut by; fields without an entry hold one value a sample.
_OFFSETS = {
    "tokens_T": "token_offsets", "routes_TLK": "token_offsets", "logprobs_R": "response_offsets", "loss_mask_R": "response_offsets",
    "text_bytes": "text_offsets",
}  # fmt: skip

# What network file systems say now and then of a write that succeeds when it is done anew.
_TRANSIENT = (errno.EIO, errno.EAGAIN, errno.EBADF, errno.ESTALE)
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SealReport:
    """What sealing took."""

    num_bytes: int
    seconds: float
    sha256: str


def seal(path: Path, batch: Batch) -> SealReport:
    """Write a batch and publish it under `path`; on any error nothing is published and no temporary file stays.

    A write that the file system fails for a passing reason is done anew, at most twice. Raises OSError (the disk is full ...).
    """
    start = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{_prefix(path)}{socket.gethostname()}.{os.getpid()}")
    for left in reversed(range(_TRIES)):
        try:
            digest = _write(temporary, batch)
            temporary.replace(path)
            break
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if left == 0 or not isinstance(error, OSError) or error.errno not in _TRANSIENT:
                raise
    _sync_folder(path.parent)
    _remove_leftovers(path)
    return SealReport(num_bytes=path.stat().st_size, seconds=time.monotonic() - start, sha256=digest)


def verify(path: Path, sha256: str) -> None:
    """Compare the bytes with what `seal` reported. Raises DataError when they differ or the file is missing."""
    try:
        found = _digest(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    if found != sha256:
        raise DataError(
            f"{path} has the SHA-256 {found}; when it was sealed it had {sha256}.", where=str(path), fix="delete it; it is generated again"
        )


def read(path: Path) -> Batch:
    """The whole batch. Raises DataError when the file is missing, torn, foreign, or of another schema."""
    with _sealed(path) as file:
        return _batch(file, {name: file[name][:] for name in _held(file)})


def read_lengths(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Token lengths (N,) and group ids (N,), without reading any token. Raises DataError as `read` does."""
    with _sealed(path) as file:
        return np.diff(file["token_offsets"][:]), file["group_N"][:]


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Whole fields of a batch by name, without reading the others. Raises DataError as `read` does."""
    with _sealed(path) as file:
        return {name: file[name][:] for name in columns}


def read_sizes(path: Path) -> dict[str, int]:
    """How many values, or rows of values, each field has, without reading any. Raises DataError as `read` does."""
    with _sealed(path) as file:
        return {name: len(file[name]) for name in _held(file)}


def read_rows(path: Path, rows: npt.NDArray[np.int64]) -> Batch:
    """The samples `rows` (indices, any order) as a batch in that order, reading only their bytes. Raises DataError as `read` does."""
    with _sealed(path) as file:
        num_samples = len(file["reward_N"])
        assert rows.size == 0 or (rows.min() >= 0 and rows.max() < num_samples), f"rows {rows} of a batch of {num_samples}"
        values: dict[str, Any] = {}
        for name in _held(file):
            if name in _OFFSETS:
                values[name] = _gather(file[name], file[_OFFSETS[name]][:], rows)
            elif name.endswith("offsets"):
                values[name] = offsets(np.diff(file[name][:])[rows].tolist())
            else:
                values[name] = file[name][:][rows]
        return _batch(file, values)


def _gather(dataset: Any, bounds: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Values of the given rows in order; neighbouring rows are read in one call."""
    parts = []
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and rows[end] == rows[end - 1] + 1:
            end += 1
        parts.append(dataset[bounds[rows[start]] : bounds[rows[end - 1] + 1]])
        start = end
    return np.concatenate(parts) if parts else dataset[:0]


def _held(file: Any) -> list[str]:
    """The fields that the file holds; those that a batch may lack are None without."""
    return [name for name in _FIELDS if name not in _OPTIONAL or name in file]


def _batch(file: Any, values: dict[str, Any]) -> Batch:
    return Batch(step=int(file.attrs["step"]), weight_version=int(file.attrs["weight_version"]), **values)


@contextlib.contextmanager
def _sealed(path: Path) -> Iterator[Any]:
    """An open sealed file; whatever HDF5 says of a bad one becomes a DataError."""
    try:
        # Sealed files are never written again, so file locks (absent on many Lustre mounts) are not needed.
        with h5py.File(path, "r", locking=False) as file:
            version = file.attrs.get("schema_version")
            if version != SCHEMA_VERSION or not file.attrs.get("complete", False):
                raise DataError(
                    f"{path} is no sealed batch of schema {SCHEMA_VERSION} (it says {version}).",
                    where=str(path),
                    fix="use the slime-hpc version that wrote it",
                )
            yield file
    except (OSError, KeyError, RuntimeError) as error:
        # h5py reports damage as any of the three, by where in the file it lies.
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"There is no batch {path}.", where=str(path), fix="resume the run; it is generated again")
    if isinstance(error, PermissionError):
        return DataError(f"{path} may not be read by this user.", where=str(path), fix="read it as the user of the run")
    return DataError(f"{path} is not a whole HDF5 file: {error}.", where=str(path), fix="delete it; it is generated again")


def _write(path: Path, batch: Batch) -> str:
    """Write, read back, and put on disk; the digest."""
    # The file is this writer's alone until the rename, so no lock is needed here either.
    with h5py.File(path, "w", locking=False) as file:
        file.attrs.update({"schema_version": SCHEMA_VERSION, **{name: getattr(batch, name) for name in _SCALARS}})
        fields = [name for name in _FIELDS if getattr(batch, name) is not None]
        for name in fields:
            file.create_dataset(name, data=getattr(batch, name))
        file.attrs["complete"] = True
    with h5py.File(path, "r", locking=False) as file:
        for name in fields:
            if file[name].shape != getattr(batch, name).shape:
                raise DataError(f"{path}: {name} was written short.", where=str(path), fix="check the file system's space and quota")
    path.chmod(0o600)
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prefix(path: Path) -> str:
    """What the temporary names of a batch begin with."""
    return f".{path.name}.tmp."


def _remove_leftovers(path: Path) -> None:
    """What killed writers of this batch left; there is one writer at a time."""
    for leftover in path.parent.iterdir():
        if leftover.name.startswith(_prefix(path)):
            leftover.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
