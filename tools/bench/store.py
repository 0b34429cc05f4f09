"""Writing and reading a batch: HDF5 as `slime_hpc.store.hdf5` does it, beside other formats, and what the machine allows.

Peers: Arrow IPC; Parquet, without compression and dictionaries, which is faster here; safetensors; torch.save of flat tensors, and of a
list of dicts, one a sample, as several RL trainers dump rollouts; JSON lines. The last two get their dicts ready-made, and return dicts.
write    the whole batch. "plain" is the format's own call; "durable" writes under another name, flushes to disk and renames.
         slime-hpc is `seal` in both: it always does that, reads its shapes back and computes a SHA-256.
read     the whole batch into memory, from files that the page cache holds.
one      one sample of the batch, at random.
small    token lengths and rewards of 4 batches, without their tokens where the format allows it.
Limits: a copy in memory, one write(2) with and without fsync, one read(2), SHA-256, each of as many bytes as the batch has.

All run in this process, in shuffled order; that each reads what was written is checked before, and within `one` and `small`. Seconds are
the clock's, since waiting for the disk counts: what else the machine does moves them, so minimum and median of the rounds are given, and
the targets compare minima.

What is not claimed: no network file system is measured, unless --folder lies on one. Arrow reads through a memory map only for `one` and
`small`, where it moves few bytes; the whole batch it could map without moving any.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from store_peer import Format, arrays, arrow_formats, dict_formats, tensor_formats

from slime_hpc.data.batch import Batch
from slime_hpc.data.collate import offsets
from slime_hpc.store import hdf5

SMALL_FILES = 4
SLOW_ROUNDS = 2


def make_batch(num_samples: int, seed: int = 0) -> Batch:
    """Answers of lognormal length in groups of 8, each after a prompt of 100 to 400 tokens."""
    rng = np.random.default_rng(seed)
    responses = np.clip(rng.lognormal(7.3, 0.9, num_samples), 1, 16_384).astype(np.int64)
    token_offsets, response_offsets = offsets((responses + rng.integers(100, 400, num_samples)).tolist()), offsets(responses.tolist())
    total = int(response_offsets[-1])
    text_offsets = response_offsets * 4
    zeros = np.zeros(num_samples, np.int32)
    return Batch(
        step=1,
        weight_version=0,
        tokens_T=rng.integers(0, 151_936, int(token_offsets[-1]), dtype=np.int32),
        token_offsets=token_offsets,
        response_offsets=response_offsets,
        logprobs_R=-rng.exponential(0.5, total).astype(np.float32),
        loss_mask_R=np.ones(total, np.uint8),
        reward_N=rng.integers(0, 2, num_samples).astype(np.float32),
        reward_failed_N=zeros.astype(np.uint8),
        group_N=np.arange(num_samples) // 8,
        index_N=(np.arange(num_samples) % 8).astype(np.int32),
        finish_N=zeros.astype(np.uint8),
        weight_version_N=zeros,
        weight_version_last_N=zeros,
        text_bytes=rng.integers(97, 123, 4 * total, dtype=np.uint8),
        text_offsets=text_offsets,
    )


def ours(batch: Batch) -> Format:
    """Sealed HDF5."""

    def small(path: Path) -> tuple[Any, Any]:
        columns = hdf5.read_columns(path, ("token_offsets", "reward_N"))
        return np.diff(columns["token_offsets"]), columns["reward_N"]

    return Format(
        name="slime-hpc", ready=batch, write=hdf5.seal, read=hdf5.read, tokens=lambda read: read.tokens_T,
        one=lambda path, i: hdf5.read_rows(path, np.array([i])).tokens_T, small=small,
    )  # fmt: skip


def durable(path: Path, write: Callable[[Path], object]) -> None:
    """Under another name, flushed, renamed, the folder flushed."""
    temporary = path.with_suffix(".tmp")
    write(temporary)
    flush(temporary)
    temporary.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """To disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tasks(form: Format, batch: Batch, folder: Path, rng: random.Random) -> dict[str, Callable[[], object]]:
    """What is timed of a format; each checks what it read. Its file, and other names of it for `small`, are made first."""
    path = folder / "batch"
    folder.mkdir()
    form.write(path, form.ready)
    assert np.array_equal(form.tokens(form.read(path)), batch.tokens_T), form.name
    copies = [folder / f"copy_{number}" for number in range(SMALL_FILES)]
    for copy in copies:
        os.link(path, copy)

    def one() -> None:
        i = rng.randrange(batch.num_samples)
        found = form.one(path, i)
        assert np.array_equal(found, batch.tokens_T[batch.token_offsets[i] : batch.token_offsets[i + 1]]), form.name

    def small() -> None:
        for copy in copies:
            lengths, rewards = form.small(copy)
            assert np.array_equal(lengths, batch.token_lengths_N) and np.array_equal(rewards, batch.reward_N), form.name

    def plain() -> None:
        form.write(written, form.ready)

    written = folder / "written"
    always = form.write is hdf5.seal
    return {
        "plain": plain,
        "durable": lambda: plain() if always else durable(written, lambda temporary: form.write(temporary, form.ready)),
        "read": lambda: form.read(path),
        "one": one,
        "small": small,
    }


def limits(num_bytes: int, folder: Path) -> dict[str, Callable[[], object]]:
    """What the machine allows for so many bytes."""
    folder.mkdir()
    path, source, target = folder / "raw", np.random.default_rng(1).integers(0, 256, num_bytes, np.uint8), np.empty(num_bytes, np.uint8)
    source.tofile(path)

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            view, done = memoryview(target), 0
            while done < num_bytes:
                done += file.readinto(view[done:]) or num_bytes

    return {
        "memcpy": lambda: np.copyto(target, source),
        "write": lambda: source.tofile(folder / "new"),
        "write, durable": lambda: durable(folder / "new", source.tofile),
        "read": read,
        "sha256": lambda: hashlib.sha256(source).hexdigest(),
    }


def measure(work: dict[tuple[str, str], Callable[[], object]], rounds: int, slow: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds, minimum and median, by name and task; every round in another order."""
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in work}
    rng = random.Random(0)
    for number in range(rounds):
        keys = [key for key in work if key[0] not in slow or number < SLOW_ROUNDS]
        rng.shuffle(keys)
        for key in keys:
            start = time.perf_counter()
            work[key]()
            seconds[key].append(time.perf_counter() - start)
    result: dict[str, dict[str, dict[str, float]]] = {}
    for (name, task), values in seconds.items():
        result.setdefault(name, {})[task] = {"s_min": min(values), "s_median": statistics.median(values)}
    return result


def targets(rows: dict[str, dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """How many times faster slime-hpc is than a peer, by the minima."""

    def target(peer: str, task: str, goal: float) -> dict[str, Any]:
        value = rows[peer][task]["s_min"] / rows["slime-hpc"][task]["s_min"]
        return {"name": f"{peer} / slime-hpc, {task}", "value": round(value, 3), "goal": goal, "met": value >= goal}

    against_arrow = [target("Arrow IPC", task, goal) for task, goal in (("plain", 0.9), ("durable", 0.9), ("read", 1.0))]
    return against_arrow + [target(peer, task, 10) for peer in ("torch.save, dicts", "JSON lines") for task in ("durable", "read")]


def main() -> None:
    """Run, print a table, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="256 samples instead of 1,024, and 3 rounds instead of 7")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    parser.add_argument("--folder", type=Path, help="where to write, e.g. on a shared file system; default: where temporary files go")
    options = parser.parse_args()
    batch = make_batch(256 if options.quick else 1_024)
    num_bytes = sum(value.nbytes for value in arrays(batch).values())
    formats = [ours(batch), *arrow_formats(batch), *tensor_formats(batch), *dict_formats(batch)]
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        work = {("limit", task): call for task, call in limits(num_bytes, folder / "limit").items()}
        for form in formats:
            work |= {(form.name, task): call for task, call in tasks(form, batch, folder / form.name, random.Random(1)).items()}
        rows = measure(work, 3 if options.quick else 7, [form.name for form in formats if form.slow])
    finally:
        shutil.rmtree(folder)
    if not options.json:
        print(f"{batch.num_samples} samples, {len(batch.tokens_T):,} tokens, {num_bytes / 1e6:.1f} MB; min / median")
        for name, row in rows.items():
            for task, value in row.items():
                rate = "" if task in ("one", "small") else f"{num_bytes / value['s_min'] / 1e9:7.2f} GB/s"
                print(f"{name:18} {task:15} {value['s_min'] * 1e3:10.2f} / {value['s_median'] * 1e3:10.2f} ms {rate}")
    value = {"bench": "store", "targets": targets(rows), "bytes": num_bytes, "tokens": len(batch.tokens_T), "rows": rows}
    print(json.dumps({**value, "cores": os.cpu_count(), "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
