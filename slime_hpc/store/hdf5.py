"""Batches as sealed HDF5 files: one dataset a field, flat values with offsets, published by rename.

A reader never sees a file that is being written: the writer's name is temporary until the file is closed, read back, and on disk.
No variable-length types and no group per sample, which cost kilobytes each; no compression, which costs more time than it saves.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
import time
from collections.abc import Sequence
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
_FIELDS = tuple(f.name for f in dataclasses.fields(Batch) if f.name not in _SCALARS)
# Which offsets a flat field is cut by; fields without an entry hold one value a sample.
_OFFSETS = {"tokens_T": "token_offsets", "logprobs_R": "response_offsets", "loss_mask_R": "response_offsets", "text_bytes": "text_offsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SealReport:
    """What sealing took."""

    num_bytes: int
    seconds: float
    sha256: str


def seal(path: Path, batch: Batch) -> SealReport:
    """Write a batch and publish it under `path`; on any error nothing is published and no temporary file stays."""
    start = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.tmp.{socket.gethostname()}.{os.getpid()}")
    try:
        # The file is this writer's alone until the rename, so file locks (absent on many Lustre mounts) are not needed.
        with h5py.File(temporary, "w", locking=False) as file:
            file.attrs.update({"schema_version": SCHEMA_VERSION, "step": batch.step, "weight_version": batch.weight_version})
            for name in _FIELDS:
                file.create_dataset(name, data=getattr(batch, name))
            file.attrs["complete"] = True
        _check(temporary, batch)
        temporary.chmod(0o600)
        digest = _sync(temporary)
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return SealReport(num_bytes=path.stat().st_size, seconds=time.monotonic() - start, sha256=digest)


def read(path: Path) -> Batch:
    """The whole batch. Raises DataError when the file is missing, torn, foreign, or of another schema."""
    with _Sealed(path) as file:
        return Batch(**_scalars(file), **{name: file[name][:] for name in _FIELDS})


def read_lengths(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Token lengths (N,) and group ids (N,), without reading any token."""
    with _Sealed(path) as file:
        return np.diff(file["token_offsets"][:]), file["group_N"][:]


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Whole fields of a batch by name, without reading the others."""
    with _Sealed(path) as file:
        return {name: file[name][:] for name in columns}


def read_rows(path: Path, rows: npt.NDArray[np.int64]) -> Batch:
    """The samples `rows` (indices, any order) as a batch in that order, reading only their bytes."""
    with _Sealed(path) as file:
        values: dict[str, Any] = {}
        for name in _FIELDS:
            if name in _OFFSETS:
                bounds = file[_OFFSETS[name]][:]
                values[name] = _gather(file[name], bounds, rows)
            elif name.endswith("offsets"):
                values[name] = offsets(np.diff(file[name][:])[rows].tolist())
            else:
                values[name] = file[name][:][rows]
        return Batch(**_scalars(file), **values)


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


def _scalars(file: Any) -> dict[str, int]:
    return {name: int(file.attrs[name]) for name in _SCALARS}


class _Sealed:
    """An open sealed file; whatever HDF5 says of a bad one becomes a DataError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Any:
        try:
            self._file = h5py.File(self._path, "r", locking=False)
        except FileNotFoundError as error:
            raise DataError(f"There is no batch {self._path}.", where=str(self._path)) from error
        except OSError as error:
            raise DataError(
                f"{self._path} is not a whole HDF5 file: {error}.", where=str(self._path), fix="delete it; it is generated again"
            ) from error
        version = self._file.attrs.get("schema_version")
        if version != SCHEMA_VERSION or not self._file.attrs.get("complete", False):
            self._file.close()
            raise DataError(
                f"{self._path} is no sealed batch of schema {SCHEMA_VERSION} (it says {version}).",
                where=str(self._path),
                fix="use the slime-hpc version that wrote it",
            )
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _check(path: Path, batch: Batch) -> None:
    with h5py.File(path, "r", locking=False) as file:
        for name in _FIELDS:
            if file[name].shape != getattr(batch, name).shape:
                raise DataError(f"{path}: {name} was written short.", where=str(path), fix="check the file system's space and quota")


def _sync(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return digest


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
