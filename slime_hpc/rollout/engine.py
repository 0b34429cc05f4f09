"""The task of one engine: start its SGLang server, say where it listens, watch it, start it again, and leave nothing behind.

Knows one engine only; who sends requests and who pushes weights finds it through its endpoint file, which is gone while it is down.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, free_port, publish, write_atomic
from slime_hpc.control.interface import collective_environment
from slime_hpc.errors import EngineError
from slime_hpc.rollout.process import ServerProcess, python_environment
from slime_hpc.rollout.pulse import Pulse
from slime_hpc.rollout.server_args import cpu_environment, devices, engine_args, tensor_parallel
from slime_hpc.sync.delta import agent

START_TIMEOUT_S = 1800.0
_SHIMS = Path(__file__).with_name("cpu_shims")


def main(context: RoleContext) -> None:
    """Run the engine until this task is told to stop; a server that dies or falls silent is started again `failure.engine_restarts` times.

    Raises ConfigError or EngineError when the server does not start, or its restarts are spent.
    """
    path = context.run.endpoint(context.attempt, f"{context.role.name}-{context.rank}")
    budget = context.experiment.failure.engine_restarts
    for restarts in itertools.count():
        try:
            _serve(context, path)
        except EngineError as error:
            # One that has never served would not serve the next time either.
            if restarts >= budget or not path.exists():
                raise
            path.unlink()
            print(f"restart {restarts + 1} of {budget}: {error}", flush=True)


def _serve(context: RoleContext, path: Path) -> None:
    port = free_port(context.address, context.port_first)
    nccl_port = free_port(context.address, port + 1)
    endpoint = endpoint_of(context, port)
    settings = write_settings(context, endpoint, nccl_port)
    command = [sys.executable, "-m", "slime_hpc.rollout.sglang_server", str(settings)]
    with ServerProcess(endpoint.role, command, environment(context)) as server, agent.beside(context, endpoint.role):
        server.wait_healthy(f"{endpoint.url}/health", timeout_s=START_TIMEOUT_S)
        publish(path, endpoint)
        server.watch(_pulse(context, endpoint))


def _pulse(context: RoleContext, endpoint: Endpoint) -> Pulse | None:
    if context.experiment.rollout.colocate:
        return None
    return Pulse(endpoint, context.token, silence_s=context.experiment.failure.engine_silence_s)


def endpoint_of(context: RoleContext, port: int) -> Endpoint:
    """How this engine is known: '<role>-<rank>'."""
    return Endpoint(
        role=f"{context.role.name}-{context.rank}",
        rank=context.rank,
        host=context.address,
        port=port,
        node=os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        pid=os.getpid(),
        gpus=tensor_parallel(context.experiment, context.role),
        started=time.time(),
    )


def write_settings(context: RoleContext, endpoint: Endpoint, nccl_port: int) -> Path:
    """Write what the server's process reads; it names the token's file, not the token."""
    arguments = engine_args(context.experiment, context.topology, context.role, host=endpoint.host, port=endpoint.port, nccl_port=nccl_port)
    settings = {"token_file": str(context.run.token), "accelerator": context.topology.accelerator, "server_args": arguments}
    path = context.run.role(context.attempt, context.role.name) / f"{endpoint.role}.json"
    write_atomic(path, json.dumps(settings, indent=1))
    return path


def environment(context: RoleContext) -> dict[str, str]:
    """Environment of the server: offline, and with the engine's own devices or cores."""
    size = tensor_parallel(context.experiment, context.role)
    own = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if context.topology.accelerator == "cpu":
        first = [_SHIMS]
        own |= cpu_environment(size, _cores(context), int(os.environ.get("OMP_NUM_THREADS", context.role.cpus_per_task)))
    else:
        first = []
        own["CUDA_VISIBLE_DEVICES"] = ",".join(devices(context.role, context.local_rank, size, os.environ.get("CUDA_VISIBLE_DEVICES")))
    return collective_environment(context.address) | python_environment(*first) | own


def _cores(context: RoleContext) -> list[int]:
    """The cores of this task: what Slurm bound it to, or, on a machine it shares freely, its own share in turn."""
    allowed = sorted(os.sched_getaffinity(0))
    count = context.role.cpus_per_task
    return [allowed[(context.local_rank * count + i) % len(allowed)] for i in range(min(count, len(allowed)))]
