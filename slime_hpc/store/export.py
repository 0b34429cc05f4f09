"""Samples of many batches as one JSON-lines or Parquet file, published whole or not at all.

One row a sample, with the columns of `rows`; finish is "stop", "length" or "abort". The text of a prompt is null without a tokenizer; in
JSON so is a number that is not finite.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from slime_hpc.data.batch import Batch
from slime_hpc.data.split import split
from slime_hpc.data.tokenize import Decode
from slime_hpc.errors import DataError

_FIX = "give a name that ends with .jsonl or .parquet, in a folder that exists"


def export(batches: Iterable[Batch], target: Path, *, decode: Decode | None) -> int:
    """Write all samples, one batch in memory at a time; how many they were. An older file of this name is replaced.

    Raises DataError for a name it cannot write to, and what reading the batches raises; then `target` is as it was before.
    """
    write = _writer(target)
    if not target.parent.is_dir():
        raise DataError(f"There is no folder {target.parent}.", where="--to", fix=_FIX)
    temporary = target.with_name(f".{target.name}.tmp.{socket.gethostname()}.{os.getpid()}")
    try:
        count = write(temporary, ([*rows(batch, decode)] for batch in batches))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise DataError(f"Cannot write {target}: {error.strerror or error}.", where="--to", fix=_FIX) from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def rows(batch: Batch, decode: Decode | None) -> Iterator[dict[str, Any]]:
    """The samples of a batch as rows of plain values."""
    for sample in split(batch):
        prompt = sample.prompt_tokens_P.tolist()
        yield {
            "step": batch.step,
            "group": sample.group,
            "index": sample.index,
            "prompt": decode(prompt) if decode else None,
            "response": sample.text,
            "prompt_tokens": prompt,
            "response_tokens": sample.response_tokens_R.tolist(),
            "logprobs": sample.logprobs_R.tolist(),
            "loss_mask": sample.loss_mask_R.tolist(),
            "reward": sample.reward,
            "reward_failed": sample.reward_failed,
            "finish": sample.finish.name.lower(),
            "weight_version": sample.weight_version,
            "weight_version_last": sample.weight_version_last,
        }


def _writer(target: Path) -> Callable[[Path, Iterable[list[dict[str, Any]]]], int]:
    if target.suffix == ".jsonl":
        return _write_json
    if target.suffix != ".parquet":
        raise DataError(f"{target.name} is neither a .jsonl nor a .parquet file.", where="--to", fix=_FIX)
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as error:
        raise DataError("Parquet needs the package pyarrow.", where="--to", fix="pip install pyarrow, or write a .jsonl file") from error
    return _write_parquet


def _write_json(path: Path, parts: Iterable[list[dict[str, Any]]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for part in parts:
            for row in part:
                finite = {
                    **row,
                    "reward": finite_or_none(row["reward"]),
                    "logprobs": [finite_or_none(value) for value in row["logprobs"]],
                }
                file.write(json.dumps(finite, allow_nan=False) + "\n")
            count += len(part)
    return count


def finite_or_none(value: float) -> float | None:
    """JSON has no other numbers."""
    return value if math.isfinite(value) else None


def _write_parquet(path: Path, parts: Iterable[list[dict[str, Any]]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    integers, text = pa.list_(pa.int32()), pa.string()
    schema = pa.schema(
        [
            ("step", pa.int64()), ("group", pa.int64()), ("index", pa.int32()), ("prompt", text), ("response", text),
            ("prompt_tokens", integers), ("response_tokens", integers), ("logprobs", pa.list_(pa.float32())),
            ("loss_mask", pa.list_(pa.uint8())), ("reward", pa.float32()), ("reward_failed", pa.bool_()), ("finish", text),
            ("weight_version", pa.int32()), ("weight_version_last", pa.int32()),
        ]
    )  # fmt: skip
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            writer.write_table(pa.Table.from_pylist(part, schema=schema))
            count += len(part)
    return count
