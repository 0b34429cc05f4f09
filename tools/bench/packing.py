"""Packing and balancing: time, micro-batches against the lower bound, and balance, beside what comparable projects do.

Packing: `slime_hpc.data.packing.pack` (best-fit decreasing over a sorted list of rooms) beside first-fit in arrival order (for each sample
the first bin with room, one after the other, as several RL trainers do it) and, with the extra `bench`, TRL's best-fit packer.
TRL packs the tokens themselves, so its time includes copying them, and it gets less to copy: lengths and cap divided by 64, rounded down,
which may spare it a bin.
Balancing: `split` and `deal` (costliest first, then swaps) beside Karmarkar-Karp for equally many bins a rank, on the same bins.
All peers run in this process, in shuffled order, each round anew. Milliseconds are processor time, which other programs on the machine move
less than the clock's; of the rounds the minimum counts. Bins that are split for the ranks' sake are in no packer's count.

What is not claimed: at n = 512 all packers take less than a millisecond; first-fit often needs as few bins as best-fit decreasing does; and
Karmarkar-Karp is some ten times faster than `deal`, which gets its evenness from the swaps.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from slime_hpc.data.packing import attention_cost, deal, pack, split

CAP = 32_768
RANKS = 64
Lengths = np.ndarray
LAWS: dict[str, Callable[[np.random.Generator, int], Lengths]] = {
    "lognormal": lambda rng, n: rng.lognormal(7.5, 1.0, n),
    "uniform": lambda rng, n: rng.uniform(64, 8192, n),
    "long tail": lambda rng, n: np.where(rng.random(n) < 0.1, rng.uniform(16_384, CAP, n), rng.exponential(1024, n)),
}


def first_fit(lengths: Lengths, cap: int) -> list[list[int]]:
    """In arrival order, each into the first bin with room."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for index, length in enumerate(lengths.tolist()):
        for k, room in enumerate(rooms):
            if room >= length:
                bins[k].append(index)
                rooms[k] -= length
                break
        else:
            bins.append([index])
            rooms.append(cap - length)
    return bins


def trl_packer() -> Callable[[Lengths, int], int] | None:
    """TRL's own, on lists of tokens; the number of its bins."""
    try:
        from datasets import Dataset, disable_progress_bars
        from trl import pack_dataset
    except ImportError:
        return None
    disable_progress_bars()

    def packed(lengths: Lengths, cap: int) -> int:
        data = Dataset.from_dict({"input_ids": [[0] * max(1, int(length) // 64) for length in lengths]})
        return len(pack_dataset(data, seq_length=cap // 64, strategy="bfd"))

    return packed


def karmarkar_karp(loads: list[float], ranks: int) -> float:
    """The largest sum of `ranks` parts with equally many loads, by merging the two tuples of parts that differ most."""
    order = sorted(loads)
    heap = []
    for number in range(0, len(order), ranks):
        parts = [(load, 1) for load in sorted(order[number : number + ranks], reverse=True)]
        heapq.heappush(heap, (parts[-1][0] - parts[0][0], number, parts))
    for number in itertools.count(len(order)):
        if len(heap) == 1:
            return max(load for load, _ in heap[0][2])
        (_, _, one), (_, _, two) = heapq.heappop(heap), heapq.heappop(heap)
        merged = sorted(((a + b, m + n) for (a, m), (b, n) in zip(one, reversed(two), strict=True)), reverse=True)
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], number, merged))
    raise AssertionError


def draw(law: str, n: int) -> Lengths:
    """The same lengths every time."""
    return np.clip(LAWS[law](np.random.default_rng(n), n), 16, CAP).astype(np.int64)


def timed(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, Any]]:
    """Minimum and median processor milliseconds of each, and its last result; a first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    results = {}
    for _ in range(rounds + 1):
        for name in random.sample(sorted(functions), k=len(functions)):
            start = time.process_time()
            results[name] = functions[name]()
            seconds[name].append(1e3 * (time.process_time() - start))
    return {
        name: {"ms_min": min(values[1:]), "ms_median": statistics.median(values[1:]), "result": results[name]}
        for name, values in seconds.items()
    }


def packing(law: str, n: int, rounds: int) -> dict[str, Any]:
    """One row: our packer and its peers."""
    lengths = draw(law, n)
    bound = -(-int(lengths.sum()) // CAP)
    functions: dict[str, Callable[[], Any]] = {
        "slime-hpc": lambda: len(pack(lengths, CAP)),
        "first-fit": lambda: len(first_fit(lengths, CAP)),
    }
    if (trl := trl_packer()) is not None:
        functions["trl"] = lambda: trl(lengths, CAP)
    result = timed(functions, rounds)
    bins = pack(lengths, CAP)
    assert sorted(itertools.chain(*bins)) == list(range(n)) and all(lengths[members].sum() <= CAP for members in bins)
    return {"law": law, "n": n, "bound": bound, **{name: {"bins": row.pop("result"), **row} for name, row in result.items()}}


def balancing(law: str, n: int, rounds: int) -> dict[str, Any]:
    """One row: splitting and dealing the packed bins to ranks, and Karmarkar-Karp of the same bins. Balance = most loaded / mean - 1."""
    lengths = draw(law, n)
    costs = attention_cost(lengths).tolist()
    bins = pack(lengths, CAP)
    count = -(-len(bins) // RANKS) * RANKS

    def ours() -> float:
        _, loads = split(bins, costs, count)
        return max(sum(loads[k] for k in rank) for rank in deal(loads, RANKS))

    _, loads = split(bins, costs, count)
    result = timed({"slime-hpc": ours, "karmarkar-karp": lambda: karmarkar_karp(loads, RANKS)}, rounds)
    mean = sum(costs) / RANKS
    floor = max(mean, max(loads))
    rows = {name: {"balance": row.pop("result") / mean - 1, **row} for name, row in result.items()}
    return {"law": law, "n": n, "ranks": RANKS, "micro_batches": count, "least_possible": floor / mean - 1, **rows}


def target(name: str, value: float, goal: float, *, at_most: bool = False) -> dict[str, Any]:
    """One of the goals, and whether it is met."""
    return {"name": name, "value": float(f"{value:.4g}"), "goal": goal, "met": bool(value <= goal if at_most else value >= goal)}


def targets(packed: list[dict[str, Any]], dealt: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst over the three laws of length counts."""
    large = [row for row in packed if row["n"] == 16_384]
    return [
        target("first-fit / slime-hpc, time at n = 16,384", min(r["first-fit"]["ms_min"] / r["slime-hpc"]["ms_min"] for r in large), 10),
        target("bins more than first-fit, any n", max(r["slime-hpc"]["bins"] - r["first-fit"]["bins"] for r in packed), 0, at_most=True),
        target("balance, n = 4,096 on 64 ranks", max(r["slime-hpc"]["balance"] for r in dealt), 1e-3, at_most=True),
        target("ms of balancing, n = 4,096 on 64 ranks", max(r["slime-hpc"]["ms_min"] for r in dealt), 10, at_most=True),
    ]


def main() -> None:
    """Run, print two tables, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds, without n = 65,536")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args()
    sizes, rounds = ((512, 4_096, 16_384), 2) if options.quick else ((512, 4_096, 16_384, 65_536), 5)
    packed = [packing(law, n, rounds if n < 65_536 else 1) for n in sizes for law in LAWS]
    dealt = [balancing(law, 4_096, 3 * rounds) for law in LAWS]
    if not options.json:
        for row in packed:
            peers = (f"{k} {v['ms_min']:.2f} / {v['ms_median']:.2f} ms, {v['bins']} bins" for k, v in row.items() if isinstance(v, dict))
            print(f"pack     {row['law']:10} n {row['n']:6,}  at least {row['bound']:5} bins  ", "   ".join(peers))
        for row in dealt:
            peers = (f"{k} {v['ms_min']:.2f} / {v['ms_median']:.2f} ms, {v['balance']:.1e}" for k, v in row.items() if isinstance(v, dict))
            print(f"balance  {row['law']:10} n {row['n']:6,}  at least {row['least_possible']:.1e}  ", "   ".join(peers))
    rows = {"packing": packed, "balancing": dealt}
    print(
        json.dumps(
            {"bench": "packing", "targets": targets(packed, dealt), "rows": rows, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
        )
    )


if __name__ == "__main__":
    main()
