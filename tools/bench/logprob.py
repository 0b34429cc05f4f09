"""Log-prob and entropy from hidden states, forward and forward + backward: time and extra memory, beside plain torch and torch.compile.

The floor is the matrix products alone: one forward; four with the backward (the logits once more, the gradients of hidden and weight).
On a GPU in bfloat16 with the sizes of 8B and 0.6B models, on a CPU in float32 with those of SmolLM2; all in one process, in shuffled turns.
Plain torch keeps the logits of all rows in float32, which is what the extra memory shows.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from slime_hpc.trainer import fused_logprob

Pair = tuple[torch.Tensor, torch.Tensor]
GPU_SIZES = [(8192, 4096, 151_936), (8192, 1024, 151_936)]
CPU_SIZES = [(1024, 576, 49_152)]
MIB = 2**20


def plain(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> Pair:
    """Whole logits and autograd."""
    logp = torch.log_softmax((hidden @ weight.t()).float(), dim=-1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def ours(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> Pair:
    """What the trainer runs on GPUs."""
    return fused_logprob.from_hidden(hidden, weight, target, temperature=1.0)


def products(hidden: torch.Tensor, weight: torch.Tensor, backward: bool) -> None:
    """The floor: a chunk of the logits at a time, so that it fits beside the others' memory."""
    for part in hidden.split(2048):
        logits = part @ weight.t()
        if backward:
            logits = part @ weight.t()
            logits @ weight
            logits.t() @ part


def contestants(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, gpu: bool) -> dict[str, Callable[[bool], None]]:
    """Name -> a call that runs forward, and backward when asked."""
    functions = {"slime-hpc": ours, "torch": plain}
    if gpu:
        functions["torch.compile"] = torch.compile(plain)

    def run(function: Callable[..., Pair], backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            logp, entropy = function(hidden, weight, target)
            if backward:
                (logp.sum() + 0.01 * entropy.sum()).backward()

    calls: dict[str, Callable[[bool], None]] = {name: lambda backward, f=f: run(f, backward) for name, f in functions.items()}  # type: ignore[misc]
    calls["products"] = lambda backward: products(hidden.detach(), weight.detach(), backward)
    return calls


def measure(sizes: tuple[int, int, int], rounds: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Seconds (minimum, median) and extra MiB of each contestant, forward and forward + backward."""
    rows, width, vocabulary = sizes
    gpu = device.type == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    hidden = torch.randn(rows, width, device=device, dtype=dtype).requires_grad_()
    weight = (0.02 * torch.randn(vocabulary, width, device=device, dtype=dtype)).requires_grad_()
    target = torch.randint(0, vocabulary, (rows,), device=device)
    taken: dict[str, dict[str, list[float]]] = {}
    memory: dict[str, float] = {}
    calls = contestants(hidden, weight, target, gpu)
    for number in range(rounds + 1):
        for name, backward in random.sample([(n, b) for n in calls for b in (False, True)], k=2 * len(calls)):
            kind = "both" if backward else "forward"
            hidden.grad = weight.grad = None
            seconds, peak = _timed(calls[name], backward, device)
            gradients = sum(p.grad.nbytes for p in (hidden, weight) if p.grad is not None)
            memory[f"{name} {kind}"] = max(0, peak - gradients) / MIB
            if number:
                taken.setdefault(name, {}).setdefault(kind, []).append(seconds)
    return {
        f"{name} {kind}": {"min_ms": 1e3 * min(v), "median_ms": 1e3 * statistics.median(v), "extra_mib": memory[f"{name} {kind}"]}
        for name, kinds in taken.items()
        for kind, v in kinds.items()
    }


def _timed(call: Callable[[bool], None], backward: bool, device: torch.device) -> tuple[float, int]:
    """Seconds of a call, and the most bytes it held on the GPU beyond those before it; 0 on a CPU, which does not count them."""
    if device.type != "cuda":
        start = time.perf_counter()
        call(backward)
        return time.perf_counter() - start, 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    call(backward)
    torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated() - before


def targets(name: str, rows: dict[str, dict[str, float]], gpu: bool) -> list[dict[str, Any]]:
    """Goals: time over the products', and on a GPU the extra memory (the gradients themselves are not counted as extra)."""
    found = []
    for kind, goal in (("forward", 1.25), ("both", 1.3)):
        ratio = rows[f"slime-hpc {kind}"]["median_ms"] / rows[f"products {kind}"]["median_ms"]
        found.append({"name": f"{name}, {kind}, over the products", "value": round(ratio, 2), "goal": goal, "met": ratio <= goal})
    if gpu:
        for kind, limit in (("forward", 100.0), ("both", 1024.0)):
            extra = rows[f"slime-hpc {kind}"]["extra_mib"]
            found.append({"name": f"{name}, {kind}, extra MiB", "value": round(extra), "goal": limit, "met": extra <= limit})
    return found


def main() -> None:
    """Run, print a table, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 20")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    result: dict[str, Any] = {"bench": "logprob", "targets": [], "device": torch.cuda.get_device_name() if gpu else "cpu", "sizes": {}}
    for sizes in GPU_SIZES if gpu else CPU_SIZES:
        name = "T {} H {} V {}".format(*sizes)
        rows = result["sizes"][name] = measure(sizes, 3 if options.quick else 20, device)
        result["targets"] += targets(name, rows, gpu)
        if not options.json:
            print(name)
            for contestant, row in sorted(rows.items()):
                print(
                    f"  {contestant:24} min {row['min_ms']:9.2f} ms  median {row['median_ms']:9.2f} ms  extra {row['extra_mib']:9.0f} MiB"
                )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
