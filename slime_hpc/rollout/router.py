"""The router's task: sglang-router between the controller and the engines, started empty; the controller registers engines with it.

Authorization, as sglang-router 0.3.2 does it: with `api_key` set it refuses (401) any request to /generate, /workers, /flush_cache and the
OpenAI routes that does not bear that key, and hands the client's own Authorization header on to the engine, which checks it
again. For requests of its own (/server_info, /get_load) it uses the `api_key` that a worker was registered with, so the run's token
belongs in `POST /workers {"url", "api_key"}`. Open without a token: liveness, health, /v1/models, and /engine_metrics, which asks engines
for /metrics only. Its Prometheus port cannot be left out (29000 unless told otherwise): it gets a free one on the loopback interface.

Retries, circuit breaker and health checks are off: the controller alone decides whether a request is sent again, and an engine that takes
new weights answers no health check in time though nothing is wrong with it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, free_port, publish, write_atomic
from slime_hpc.rollout.process import ServerProcess, python_environment

START_TIMEOUT_S = 120.0
_LOOPBACK = "127.0.0.1"
_MORE_THAN_A_REQUEST_S = 60


def main(context: RoleContext) -> None:
    """Run the router until this task is told to stop. Raises EngineError when it does not start, or dies."""
    name = context.role.name
    port = free_port(context.address, context.port_first)
    settings = context.run.role(context.attempt, name) / "router.json"
    write_atomic(settings, json.dumps({"token_file": str(context.run.token), "router_args": router_args(context, port)}, indent=1))
    endpoint = Endpoint(
        role="router",
        rank=context.rank,
        host=context.address,
        port=port,
        node=os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        pid=os.getpid(),
        started=time.time(),
    )
    command = [sys.executable, "-m", "slime_hpc.rollout.router", str(settings)]
    with ServerProcess(name, command, python_environment()) as server:
        server.wait_healthy(f"{endpoint.url}/liveness", timeout_s=START_TIMEOUT_S)
        publish(context.run.endpoint(context.attempt, "router"), endpoint)
        server.watch()


def router_args(context: RoleContext, port: int) -> dict[str, Any]:
    """sglang-router's RouterArgs, without the token."""
    rollout = context.experiment.rollout
    return {
        "host": context.address,
        "port": port,
        "policy": rollout.router_policy,
        "disable_retries": True,
        "disable_circuit_breaker": True,
        "disable_health_check": True,
        "request_timeout_secs": math.ceil(rollout.request_timeout_s) + _MORE_THAN_A_REQUEST_S,
        "shutdown_grace_period_secs": 1,
        "prometheus_host": _LOOPBACK,
        "prometheus_port": free_port(_LOOPBACK, port + 1),
        "log_level": "warn",
    }


def serve(path: str) -> None:
    """Route until killed; the child process of `main`."""
    from sglang_router.router import Router
    from sglang_router.router_args import RouterArgs

    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    token = Path(settings["token_file"]).read_text(encoding="ascii").strip()
    Router.from_args(RouterArgs(**settings["router_args"], api_key=token)).start()


if __name__ == "__main__":
    serve(sys.argv[1])
