"""Weight deltas: size, and speed of encoding and applying, beside XOR with zstd as comparable projects do it, and what the machine allows.

Random: a bf16 tensor in which a share of the elements has moved by one or two units in the last place, at random places.
Training: a model of SmolLM2-135M's shape before and after its third AdamW step. Parameters are kept in fp32 and compared as bf16, as a
trainer sends them; gradients are real, of next-token loss, on random tokens; weights are random, of the config's spread, unless --model
names a folder.

encode   find what changed and compress it (no checksum, and the base is not moved on, in any row)
apply    decompress, and change the old weights in place, in memory
wire     bytes of the encoded change, as a share of all bytes
Peer: the whole tensor's XOR as one zstd-1 frame, applied in pieces of 2 MiB as it is decompressed. `xor` is the same in slime-hpc's chunks.
Limits: a copy in memory of all bytes (also what a full version costs at least), and XXH3-128, the checksum, of all bytes.

At 1 % the goals of 5 times the peer's speed in applying and of half of memcpy's in encoding are missed on two shared cores (about 4 and 0.3
to 0.4). What bounds them, of 32 MiB: reading old and new takes 4.4 ms, as long as the copy itself; finding the words that differ 3.5, the
elements in them 2.1, planes and gaps 0.9, zstd 2.3; NumPy goes through the flags once for each. Applying is 1.4 ms of zstd, 1.6 of putting
numbers together and 1.8 of memory: one element in a hundred lies in every fourth cache line. At 0.1 % applying takes a tenth of the peer's
time, and encoding, on a quiet machine, 1.4 times the copy's.

All run on one thread in this process, each round in another order; what is applied is compared bit by bit before. Milliseconds are this
thread's processor time, which other programs move less than the clock's; the goals compare minima. With --threads the chunks are also
shared between so many threads, by the clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

from slime_hpc.sync.delta import encoding
from slime_hpc.sync.delta.chunks import CHUNK_BYTES, Crew

DENSITIES = (0.001, 0.01, 0.03, 0.1)
PIECE = 2**21
Work = dict[tuple[str, str], tuple[Callable[[], object], Callable[[], object]]]
"""(name, task) -> what is timed, and what makes it ready."""
Pair = tuple[Callable[[], list[bytes]], Callable[[list[bytes]], None]]
PEER = "peer, xor + zstd-1"


def random_pair(num_elements: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """The bits of weights, and of the same after small changes: (N,) uint16 each."""
    rng = np.random.default_rng(0)
    old = (rng.standard_normal(num_elements, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    new = old.copy()
    place = rng.choice(num_elements, int(num_elements * density), replace=False)
    new[place] += rng.choice(np.array([1, 2, 65_534, 65_535], np.uint16), len(place))
    return old, new


def training_pair(model: str | None, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """All weights of a real model before and after its third AdamW step at a learning rate of 2e-6: (N,) uint16 each."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    if model:
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    else:
        sizes = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": layers}
        heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
        config = AutoConfig.for_model("llama", **sizes, **heads, tie_word_embeddings=True, initializer_range=0.04)
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-6, betas=(0.9, 0.95), weight_decay=0.0)
    states = []
    for _ in range(3):
        states = [*states[-1:], bf16_bits(network)]
        tokens = torch.randint(0, network.config.vocab_size, (2, 64))
        network(tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return states[-1], bf16_bits(network)


def bf16_bits(network: Any) -> np.ndarray:
    """(N,) uint16 of all parameters, one after another."""
    import torch

    parts = [parameter.detach().to(torch.bfloat16).view(-1).view(torch.int16) for parameter in network.parameters()]
    bits: np.ndarray = torch.cat(parts).numpy().view(np.uint16)
    return bits


def chunked(name: str, old: np.ndarray, new: np.ndarray, target: np.ndarray) -> Pair:
    """Encode and apply of one of slime-hpc's encodings."""
    chosen = encoding.load(name)
    size = CHUNK_BYTES // old.itemsize
    parts = [slice(first, first + size) for first in range(0, len(old), size)]

    def encode() -> list[bytes]:
        return [chosen.encode(old[part], new[part]) for part in parts]

    def apply(blobs: list[bytes]) -> None:
        for part, blob in zip(parts, blobs, strict=True):
            chosen.apply(target[part], blob)

    return encode, apply


def peer(old: np.ndarray, new: np.ndarray, target: np.ndarray) -> Pair:
    """XOR of the whole tensor in one frame, read in pieces."""

    def encode() -> list[bytes]:
        return [zstandard.ZstdCompressor(level=1).compress(old ^ new)]

    def apply(blobs: list[bytes]) -> None:
        raw, at = target.view(np.uint8), 0
        with zstandard.ZstdDecompressor().stream_reader(blobs[0]) as reader:
            while piece := reader.read(PIECE):
                np.bitwise_xor(raw[at : at + len(piece)], np.frombuffer(piece, np.uint8), out=raw[at : at + len(piece)])
                at += len(piece)

    return encode, apply


def tasks(old: np.ndarray, new: np.ndarray) -> tuple[Work, dict[str, int]]:
    """What is timed, each with what makes it ready; and the bytes of each encoding. Everything is checked first."""
    target = old.copy()
    rows = {name: chunked(name, old, new, target) for name in encoding.ENCODINGS} | {PEER: peer(old, new, target)}
    work: Work = {}
    wire = {}
    for name, (encode, apply) in rows.items():
        blobs = encode()
        np.copyto(target, old)
        apply(blobs)
        assert np.array_equal(target, new), name
        wire[name] = sum(map(len, blobs))
        work[name, "encode"] = encode, lambda: None
        work[name, "apply"] = (lambda apply=apply, blobs=blobs: apply(blobs)), lambda: np.copyto(target, old)  # type: ignore[misc]
    work["limit", "memcpy"] = (lambda: np.copyto(target, new)), lambda: None
    work["limit", "xxh3-128"] = (lambda: xxhash.xxh3_128_digest(new)), lambda: None
    return work, wire


def measure(work: Work, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds, minimum and median, by name and task; every round in another order."""
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in work}
    rng = random.Random(0)
    for _ in range(rounds):
        for key in rng.sample(sorted(work), len(work)):
            run, ready = work[key]
            ready()
            start = time.thread_time()
            run()
            taken[key].append((time.thread_time() - start) * 1e3)
    result: dict[str, dict[str, dict[str, float]]] = {}
    for (name, task), values in taken.items():
        result.setdefault(name, {})[task] = {"ms_min": min(values), "ms_median": statistics.median(values)}
    return result


def threaded(old: np.ndarray, new: np.ndarray, threads: int, rounds: int) -> dict[str, float]:
    """Milliseconds by the clock, the least of the rounds, with the chunks shared between threads."""
    chosen, crew, size = encoding.load("gaps"), Crew(threads), CHUNK_BYTES // old.itemsize
    parts = [slice(first, first + size) for first in range(0, len(old), size)]
    target = old.copy()
    blobs = [chosen.encode(old[part], new[part]) for part in parts]
    work: dict[str, Callable[[], object]] = {
        "encode": lambda: list(crew.map(lambda part: chosen.encode(old[part], new[part]), parts)),
        "apply": lambda: list(crew.map(lambda i: chosen.apply(target[parts[i]], blobs[i]), range(len(parts)))),
        "memcpy": lambda: list(crew.map(lambda part: np.copyto(target[part], new[part]), parts)),
    }
    least = {name: float("inf") for name in work}
    for _, (name, run) in itertools.product(range(rounds), work.items()):
        np.copyto(target, old)
        start = time.perf_counter()
        run()
        least[name] = min(least[name], (time.perf_counter() - start) * 1e3)
    crew.close()
    return least


def targets(rows: dict[str, dict[str, dict[str, float]]], wire: dict[str, int]) -> list[dict[str, Any]]:
    """The goals, at 1 % changed."""
    least = {(name, task): value["ms_min"] for name, row in rows.items() for task, value in row.items()}

    def target(name: str, value: float, goal: float, *, below: bool = False) -> dict[str, Any]:
        return {"name": name, "value": round(value, 3), "goal": goal, "met": value <= goal if below else value >= goal}

    return [
        target("wire, gaps / peer, 1 % (at most)", wire["gaps"] / wire[PEER], 0.6, below=True),
        target("apply, peer's time / gaps', 1 %", least[PEER, "apply"] / least["gaps", "apply"], 5),
        target("encode, memcpy's time / gaps', 1 %", least["limit", "memcpy"] / least["gaps", "encode"], 0.5),
    ]


def show(title: str, rows: dict[str, dict[str, dict[str, float]]], wire: dict[str, int], num_bytes: int) -> None:
    """A table of one pair."""
    print(f"{title}: {num_bytes / 1e6:.0f} MB; min / median of processor ms, GB/s of all weights")
    for name, row in rows.items():
        for task, value in row.items():
            size = f"   wire {wire[name] / num_bytes:8.4%}" if task == "encode" else ""
            rate = num_bytes / value["ms_min"] / 1e6
            print(f"  {name:20} {task:9} {value['ms_min']:9.2f} / {value['ms_median']:9.2f} {rate:7.2f} GB/s{size}")


def main() -> None:
    """Run, print tables, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="32 MiB instead of 256, 3 rounds instead of 9, 3 layers instead of 30")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    parser.add_argument("--model", help="Hugging Face folder of the model that is trained")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the last line; default: all cores")
    options = parser.parse_args()
    rounds, num_elements = (3, 2**24) if options.quick else (9, 2**27)
    pairs: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
        f"{density:.1%}": (lambda density=density: random_pair(num_elements, density))
        for density in DENSITIES  # type: ignore[misc]
    }
    pairs["training step"] = lambda: training_pair(options.model, 3 if options.quick else 30)
    results, goals, shared = {}, [], {}
    for title, make in pairs.items():
        old, new = make()
        changed = float(np.mean(old != new))
        work, wire = tasks(old, new)
        rows = measure(work, rounds)
        results[title] = {"bytes": old.nbytes, "changed": changed, "wire": wire, "rows": rows}
        if title == "1.0%":
            goals = targets(rows, wire)
            shared = threaded(old, new, options.threads, rounds)
        if not options.json:
            show(f"{title} ({changed:.3%} changed)", rows, wire, old.nbytes)
    if not options.json:
        print(f"{options.threads} threads, 1 %, clock ms:", {name: round(value, 2) for name, value in shared.items()})
    value = {"bench": "delta", "targets": goals, "pairs": results, "threads": options.threads, "threaded_ms": shared}
    name = Path(options.model).name if options.model else "random weights"
    print(json.dumps({**value, "model": name, "cores": os.cpu_count(), "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
