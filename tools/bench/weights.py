"""Pushing weights over gloo: in buckets, beside a bare broadcast of the same bytes and beside one request a tensor. And a plan for 1T.

bare      a gloo broadcast of all bytes in one buffer to one process, which receives into one buffer: what the wire allows here.
buckets   `DistributedTransport.push` of the layers of a Qwen3-0.6B in bfloat16 to one engine process that joins the group, is asked over
          HTTP and receives each bucket into fresh memory as SGLang does, but loads nothing.
tensors   the same with a bucket for each tensor.
memcpy    copying the bytes once, as laying them into buckets does.
plan      `plan_push` of a mixture-of-experts model of 1.03T parameters (61 layers, 384 experts, 163,840 words) from 256 trainer ranks
          (tensor 8, pipeline 8, expert 32) to 16 engines of 8 ranks.
engine    with --engine: `buckets` to a real SGLang engine on the CPU (96M parameters in float32), which loads them.

Order shuffled, one warm-up, seconds by the clock, minimum and median; the ratios compare minima. Sender and receiver share the machine's
cores and memory, so a copy that a network card would do costs them time. What is not claimed: nothing here measures NCCL.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from slime_hpc.config.schema import Sync
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.run_folder import RunFolder
from slime_hpc.sync.buckets import NamedTensor, TensorSpec, flatten
from slime_hpc.sync.distributed import DistributedTransport
from slime_hpc.sync.group import WeightGroup
from slime_hpc.sync.push_plan import EngineLayout, Part, PushPlan, TrainerLayout, plan_push
from slime_hpc.sync.transport import PushReport
from slime_hpc.testing.engines import make_context, make_role, make_run, start_engine
from slime_hpc.testing.fake_engine import Behaviour, start_fake_engine

MIB = 2**20
TIMEOUT_S = 600.0


def layers(count: int) -> list[NamedTensor]:
    """Layers of a Qwen3-0.6B, 31 MB each."""
    shapes = {
        "self_attn.q_proj": (2048, 1024), "self_attn.k_proj": (1024, 1024), "self_attn.v_proj": (1024, 1024),
        "self_attn.o_proj": (1024, 2048), "self_attn.q_norm": (128,), "self_attn.k_norm": (128,), "input_layernorm": (1024,),
        "post_attention_layernorm": (1024,), "mlp.gate_proj": (3072, 1024), "mlp.up_proj": (3072, 1024), "mlp.down_proj": (1024, 3072),
    }  # fmt: skip
    return [
        (f"model.layers.{layer}.{name}.weight", torch.randn(shape).bfloat16()) for layer in range(count) for name, shape in shapes.items()
    ]


def trillion(stages: int) -> Iterator[Part]:
    """Parameters of a mixture of experts with the sizes of Kimi K2's published config.json."""
    hidden, layer_count, experts, ffn, dense, vocab, heads = 7168, 61, 384, 2048, 18_432, 163_840, 64

    def part(stage: int, *specs: tuple[str, tuple[int, ...]]) -> Part:
        return Part(tuple(TensorSpec(f"{name}.weight", "bfloat16", shape) for name, shape in specs), stage)

    def mlp(prefix: str, stage: int, size: int) -> Iterator[Part]:
        yield part(stage, (f"{prefix}.gate_proj", (size, hidden)), (f"{prefix}.up_proj", (size, hidden)))
        yield part(stage, (f"{prefix}.down_proj", (hidden, size)))

    yield part(0, ("model.embed_tokens", (vocab, hidden)))
    for layer in range(layer_count):
        stage, prefix = layer * stages // layer_count, f"model.layers.{layer}"
        attention = {
            "q_a_proj": (1536, hidden), "q_a_layernorm": (1536,), "q_b_proj": (heads * 192, 1536), "kv_a_proj_with_mqa": (576, hidden),
            "kv_a_layernorm": (512,), "kv_b_proj": (heads * 256, 512), "o_proj": (hidden, heads * 128),
        }  # fmt: skip
        for name, shape in attention.items():
            yield part(stage, (f"{prefix}.self_attn.{name}", shape))
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield part(stage, (f"{prefix}.{name}", (hidden,)))
        if layer == 0:
            yield from mlp(f"{prefix}.mlp", stage, dense)
            continue
        yield part(stage, (f"{prefix}.mlp.gate", (experts, hidden)))
        yield from mlp(f"{prefix}.mlp.shared_experts", stage, ffn)
        for expert in range(experts):
            yield from mlp(f"{prefix}.mlp.experts.{expert}", stage, ffn)
    yield part(stages - 1, ("model.norm", (hidden,)))
    yield part(stages - 1, ("lm_head", (vocab, hidden)))


def plan_trillion(rounds: int) -> tuple[PushPlan, list[float]]:
    """The plan, and the seconds of making it; the parts are made before."""
    trainer = TrainerLayout(world=256, tensor=8, pipeline=8, expert=32)
    parts = list(trillion(trainer.pipeline))
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        plan = plan_push(parts, trainer, [EngineLayout(tensor=8)] * 16, limit_bytes=1024 * MIB)
        seconds.append(time.perf_counter() - start)
    return plan, seconds


class Pusher:
    """A transport that is connected to one engine."""

    def __init__(self, run: RunFolder, engine: Endpoint, bucket_mib: float) -> None:
        context = make_context(run, make_role("trainer", "trainer"), model={"path": "none"})
        self._transport = DistributedTransport(context, Sync(timeout_s=TIMEOUT_S, bucket_mib=bucket_mib))
        self._transport.connect([engine])
        self._version = 0

    def push(self, tensors: list[NamedTensor]) -> PushReport:
        """One push."""
        self._version += 1
        return self._transport.push(self._version, tensors)

    def close(self) -> None:
        """Leave the engine."""
        self._transport.close()


def measure(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of each, minimum and median; every round in another order."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    rng = random.Random(0)
    for number in range(rounds + 1):
        for name in rng.sample(list(work), len(work)):
            start = time.perf_counter()
            work[name]()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: {"s_min": min(values), "s_median": statistics.median(values)} for name, values in seconds.items()}


def compare(folder: Path, tensors: list[NamedTensor], bucket_mib: float, rounds: int) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Times of the ways to send, and the report of one bucketed push."""
    flat = flatten(tensors)
    copy = torch.empty_like(flat)
    bare = WeightGroup("bare", address="127.0.0.1", backend="gloo", timeout_s=TIMEOUT_S)
    peer = subprocess.Popen([sys.executable, Path(__file__).with_name("weights_peer.py"), str(bare.port), "bare", str(flat.numel())])
    bare.join(2)
    # Two run folders, since a transport has the engines leave the group whose name it finds in its own.
    runs = [make_run(folder / name) for name in ("buckets", "tensors")]
    try:
        with (
            start_fake_engine(runs[0], name="buckets", behaviour=Behaviour(digest=False)) as first,
            start_fake_engine(runs[1], name="tensors", behaviour=Behaviour(digest=False)) as second,
        ):
            buckets, single = Pusher(runs[0], first, bucket_mib), Pusher(runs[1], second, 1 / MIB)
            deadline = time.monotonic() + TIMEOUT_S
            work: dict[str, Callable[[], object]] = {
                "bare": lambda: bare.broadcast(flat, deadline=deadline, failed=lambda: False),
                "buckets": lambda: buckets.push(tensors),
                "tensors": lambda: single.push(tensors),
                "memcpy": lambda: copy.copy_(flat),
            }
            rows = measure(work, rounds)
            figures = buckets.push(tensors).figures()
            buckets.close()
            single.close()
        return rows, figures
    finally:
        bare.leave()
        peer.kill()
        peer.wait()


def real_engine(folder: Path, rounds: int) -> dict[str, Any]:
    """The report of the fastest push to an SGLang engine."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 512,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", tie_word_embeddings=True, **sizes), dtype=torch.float32)
    model.save_pretrained(folder / "model")
    tensors = [(name, tensor) for name, tensor in model.state_dict().items() if name != "lm_head.weight"]
    run = make_run(folder / "engine")
    with start_engine(run, folder / "model", sglang={"max_total_tokens": 1024, "skip_tokenizer_init": True}) as engine:
        pusher = Pusher(run, engine, 64)
        reports = [pusher.push(tensors) for _ in range(rounds + 1)]
        pusher.close()
    return min(reports, key=lambda report: report.total_s).figures()


def main() -> None:
    """Run, print a table, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 layers instead of 28, and 3 rounds instead of 7")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    parser.add_argument("--engine", action="store_true", help="also push to a real SGLang engine, which takes a minute to start")
    parser.add_argument("--bucket-mib", type=float, default=16.0, help="size of a bucket; default 16")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 3 if options.quick else 7
    tensors = layers(8 if options.quick else 28)
    num_bytes = sum(tensor.nbytes for _, tensor in tensors)
    with tempfile.TemporaryDirectory() as folder:
        rows, figures = compare(Path(folder), tensors, options.bucket_mib, rounds)
        engine = real_engine(Path(folder), rounds) if options.engine else None
    plan, seconds = plan_trillion(rounds)
    planned = {
        "s_min": min(seconds), "s_median": statistics.median(seconds), "buckets": len(plan.buckets),
        "tensors": sum(len(bucket.specs) for bucket in plan.buckets), "bytes": sum(bucket.num_bytes for bucket in plan.buckets),
        "largest": max(bucket.num_bytes for bucket in plan.buckets),
    }  # fmt: skip
    fastest = {name: row["s_min"] for name, row in rows.items()}
    targets = [
        ("bare / buckets, seconds", round(fastest["bare"] / fastest["buckets"], 3), 0.7),
        ("tensors / buckets, seconds", round(fastest["tensors"] / fastest["buckets"], 3), 1.0),
        ("plans of 1T a second", round(1 / planned["s_min"], 3), 1.0),
    ]
    if not options.json:
        print(f"{num_bytes / 1e6:.0f} MB in {len(tensors)} tensors; min / median")
        for name, row in rows.items():
            print(f"{name:8} {row['s_min']:8.3f} / {row['s_median']:8.3f} s {num_bytes / row['s_min'] / 1e9:8.2f} GB/s")
        print("a push in buckets:", {key: round(value, 3) for key, value in figures.items()})
        if engine:
            print(f"SGLang: {engine['bytes'] / engine['seconds'] / 1e9:.2f} GB/s:", {key: round(value, 3) for key, value in engine.items()})
        print("1T plan:", planned)
    named = [{"name": name, "value": value, "goal": goal, "met": value >= goal} for name, value, goal in targets]
    value = {"bench": "weights", "targets": named, "bytes": num_bytes, "rows": rows, "push": figures, "engine": engine, "plan": planned}
    print(json.dumps({**value, "cores": os.cpu_count(), "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
