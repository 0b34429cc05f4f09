"""The formats that store.py compares: how each writes and reads a batch. pyarrow, torch and safetensors are imported when asked for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from slime_hpc.data.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A way to store a batch; `ready` is what its writer takes."""

    name: str
    ready: Any
    write: Callable[[Path, Any], object]
    read: Callable[[Path], Any]
    tokens: Callable[[Any], Any]
    """tokens_T of what `read` returns."""
    one: Callable[[Path, int], Any]
    """Tokens of a sample."""
    small: Callable[[Path], tuple[Any, Any]]
    """Token lengths and rewards."""
    slow: bool = False


def arrays(batch: Batch) -> dict[str, np.ndarray]:
    """The arrays of a batch by name."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def arrow_formats(batch: Batch) -> list[Format]:
    """One table, a row a sample, lists for what is ragged; IPC and Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    def ragged(bounds: np.ndarray, values: np.ndarray) -> Any:
        return pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(values))

    text = pa.Array.from_buffers(
        pa.large_string(), batch.num_samples, [None, pa.py_buffer(batch.text_offsets), pa.py_buffer(batch.text_bytes)]
    )
    flat = {name: pa.array(value) for name, value in arrays(batch).items() if name.endswith("_N")}
    table = pa.table(
        {
            "tokens": ragged(batch.token_offsets, batch.tokens_T), "logprobs": ragged(batch.response_offsets, batch.logprobs_R),
            "loss_mask": ragged(batch.response_offsets, batch.loss_mask_R), "text": text, "length": pa.array(batch.token_lengths_N), **flat,
        }
    )  # fmt: skip

    def write_ipc(path: Path, table: Any) -> None:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    def read_ipc(path: Path) -> Any:
        with pa.OSFile(str(path)) as source:
            return pa.ipc.open_file(source).read_all()

    def mapped(path: Path) -> Any:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def tokens(table: Any) -> np.ndarray:
        return np.concatenate([chunk.flatten().to_numpy() for chunk in table["tokens"].chunks])

    def columns(table: Any) -> tuple[Any, Any]:
        return table["length"].to_numpy(), table["reward_N"].to_numpy()

    return [
        Format(
            name="Arrow IPC", ready=table, write=write_ipc, read=read_ipc, tokens=tokens,
            one=lambda path, i: tokens(mapped(path).slice(i, 1)), small=lambda path: columns(mapped(path)),
        ),
        Format(
            name="Parquet", ready=table, read=parquet.read_table, tokens=tokens,
            write=lambda path, table: parquet.write_table(table, path, compression="none", use_dictionary=False),
            one=lambda path, i: tokens(parquet.read_table(path).slice(i, 1)),
            small=lambda path: columns(parquet.read_table(path, columns=["length", "reward_N"])),
        ),
    ]  # fmt: skip


def tensor_formats(batch: Batch) -> list[Format]:
    """Flat arrays with offsets, as safetensors and torch.save store them."""
    import torch
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    def some(path: Path) -> Any:
        return safe_open(path, framework="np")

    def one(path: Path, i: int) -> np.ndarray:
        with some(path) as file:
            first, last = file.get_slice("token_offsets")[i : i + 2].tolist()
            return file.get_slice("tokens_T")[first:last]

    def small(path: Path) -> tuple[Any, Any]:
        with some(path) as file:
            return np.diff(file.get_tensor("token_offsets")), file.get_tensor("reward_N")

    def mapped(path: Path) -> dict[str, Any]:
        return torch.load(path, weights_only=True, mmap=True)

    def one_mapped(path: Path, i: int) -> np.ndarray:
        values = mapped(path)
        return values["tokens_T"][values["token_offsets"][i] : values["token_offsets"][i + 1]].clone().numpy()

    def small_mapped(path: Path) -> tuple[Any, Any]:
        values = mapped(path)
        return np.diff(values["token_offsets"].numpy()), values["reward_N"].numpy().copy()

    tensors = {name: torch.from_numpy(value) for name, value in arrays(batch).items()}
    return [
        Format(
            name="safetensors", ready=arrays(batch), write=lambda path, values: save_file(values, path), read=load_file,
            tokens=lambda read: read["tokens_T"], one=one, small=small,
        ),
        Format(
            name="torch.save, flat", ready=tensors, write=lambda path, values: torch.save(values, path),
            read=lambda path: torch.load(path, weights_only=True), tokens=lambda read: read["tokens_T"].numpy(),
            one=one_mapped, small=small_mapped,
        ),
    ]  # fmt: skip


def dict_formats(batch: Batch) -> list[Format]:
    """One dict a sample: torch.save of the list, and JSON lines."""
    import torch

    from slime_hpc.store.export import rows

    samples = list(rows(batch, None))

    def write_json(path: Path, samples: list[dict[str, Any]]) -> None:
        with path.open("w") as file:
            file.writelines(json.dumps(sample) + "\n" for sample in samples)

    def read_json(path: Path) -> list[dict[str, Any]]:
        with path.open() as file:
            return [json.loads(line) for line in file]

    def one_json(path: Path, i: int) -> list[int]:
        with path.open() as file:
            return row(json.loads(next(itertools.islice(file, i, None))))

    def load(path: Path) -> list[dict[str, Any]]:
        return torch.load(path, weights_only=False)

    def row(sample: dict[str, Any]) -> list[int]:
        return sample["prompt_tokens"] + sample["response_tokens"]

    def tokens(samples: list[dict[str, Any]]) -> np.ndarray:
        return np.array([token for sample in samples for token in row(sample)])

    def columns(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
        return [len(row(sample)) for sample in samples], [sample["reward"] for sample in samples]

    return [
        Format(
            name="torch.save, dicts", ready=samples, write=lambda path, samples: torch.save(samples, path), read=load, tokens=tokens,
            one=lambda path, i: row(load(path)[i]), small=lambda path: columns(load(path)), slow=True,
        ),
        Format(
            name="JSON lines", ready=samples, write=write_json, read=read_json, tokens=tokens, one=one_json,
            small=lambda path: columns(read_json(path)), slow=True,
        ),
    ]  # fmt: skip
