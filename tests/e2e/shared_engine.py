"""Runs of the demo's task one after the other, on one engine and from one warm start: `python -m tests.e2e.shared_engine [ALGORITHM ...]`.

Controller, router, engine, store and trainer are the real ones, with a run folder for each algorithm; what is saved is the start of an
engine, of Python and of the warm start for each. Leaves runs/<algorithm>/all in the current folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from slime_hpc.config.load import load_experiment
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, free_port, publish
from slime_hpc.launch.new_run import create_run
from slime_hpc.plan.plan_job import plan_job
from slime_hpc.rollout import controller, engine, router
from slime_hpc.rollout.process import ServerProcess, python_environment
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.load import load_topology
from slime_hpc.trainer import cpu

STEPS = 12
ADDRESS = "127.0.0.1"
TWO_UPDATES = ("trainer.updates_per_step=2",)
PPO = (
    "algorithm.advantage=gae", "algorithm.whiten=true", "algorithm.gae_lambda=0.95", "critic.optimizer.lr=1e-3", "critic.warmup_steps=2",
)  # fmt: skip
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "dr_grpo": ("algorithm.advantage=dr_grpo", "algorithm.loss_mean=constant"),
    "gspo": ("algorithm.loss=gspo", "algorithm.clip_low=3e-3", "algorithm.clip_high=4e-3", *TWO_UPDATES),
    "cispo": ("algorithm.loss=cispo", "algorithm.clip_low=1.0", "algorithm.clip_high=4.0", *TWO_UPDATES),
    "rloo": ("algorithm.advantage=rloo",),
    "reinforce_plus_plus": ("algorithm.advantage=reinforce_plus_plus",),
    "reinforce_plus_plus_baseline": ("algorithm.advantage=reinforce_plus_plus_baseline",),
    "ppo": PPO,
    "distillation": ("algorithm.advantage=none", "teacher.path=models/grpo"),
}
START = ("rollout.prompts_per_step=16", "trainer.optimizer.lr=5e-4", "eval=", "checkpoint.interval=0", "trainer.threads=1")


def context_of(name: str, settings: tuple[str, ...]) -> RoleContext:
    """The trainer's context of a new run of the demo."""
    experiment = load_experiment(["demo"], [f"name={name}", *START, *settings])
    topology = load_topology("local")
    plan = plan_job(experiment, topology)
    run = create_run(experiment, topology, plan, run_id="all")
    return RoleContext(
        run=run, experiment=experiment, topology=topology, plan=plan, role=plan.role("trainer"), attempt=0, rank=0, local_rank=0,
        address=ADDRESS,
    )  # fmt: skip


def of_role(context: RoleContext, kind: str) -> RoleContext:
    """The same run, seen by its only task of another role."""
    return dataclasses.replace(context, role=next(role for role in context.plan.roles if role.kind == kind))


@contextlib.contextmanager
def serve(context: RoleContext) -> Iterator[tuple[Endpoint, ServerProcess]]:
    """The engine, while it starts."""
    own = of_role(context, "engines")
    endpoint = engine.endpoint_of(own, free_port(ADDRESS, own.port_first))
    settings = engine.write_settings(own, endpoint, free_port(ADDRESS, endpoint.port + 1))
    command = [sys.executable, "-m", "slime_hpc.rollout.sglang_server", str(settings)]
    with ServerProcess(endpoint.role, command, engine.environment(own)) as server:
        yield endpoint, server


def train(context: RoleContext, serving: Endpoint, token: Path) -> None:
    """One run to its end, on an engine that knows the token; raises what made controller or trainer fail."""
    from slime_hpc.trainer import main

    shutil.copy(token, context.run.token)
    publish(context.run.endpoint(0, serving.role), serving)
    failures: list[BaseException] = []

    def control() -> None:
        try:
            controller.main(of_role(context, "controller"))
        except BaseException as error:
            failures.append(error)

    # A daemon: when the trainer fails, nobody waits for a controller that waits for it.
    controlling = threading.Thread(target=control, daemon=True)
    with route(of_role(context, "router")):
        controlling.start()
        main.main(context)
        controlling.join()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def route(context: RoleContext) -> Iterator[None]:
    """A router for one run."""
    endpoint = Endpoint(role="router", rank=0, host=ADDRESS, port=free_port(ADDRESS, context.port_first), node="", pid=0)
    settings = context.run.path / "router.json"
    arguments = router.router_args(context, endpoint.port)
    settings.write_text(json.dumps({"token_file": str(context.run.token), "router_args": arguments}))
    command = [sys.executable, "-m", "slime_hpc.rollout.router", str(settings)]
    with ServerProcess("router", command, python_environment()) as server:
        server.wait_healthy(f"{endpoint.url}/liveness", timeout_s=60)
        publish(context.run.endpoint(0, "router"), endpoint)
        yield


def export(context: RoleContext, run: RunFolder, step: int, folder: Path) -> None:
    """A checkpoint as a Hugging Face folder."""
    from safetensors.torch import save_file

    from slime_hpc.trainer import checkpoint, parallel, roster, weights
    from slime_hpc.trainer.model import Blueprint

    _, place = parallel.join(context)
    blueprint = Blueprint.read(context.experiment)
    policy = roster.make_policy(context.experiment, blueprint, place)
    checkpoint.load(run, step, policy, None)
    shutil.copytree(load_experiment(["demo"]).model.path, folder, dirs_exist_ok=True)
    tensors = {name: tensor.clone() for name, tensor in weights.export(policy.model, blueprint.sizes) if tensor is not None}
    save_file(tensors, folder / "model.safetensors")
    parallel.leave()


def warm_start(context: RoleContext) -> None:
    """The demo's supervised start alone, into the checkpoint of step 0."""
    from slime_hpc.trainer import checkpoint, parallel, roster, warm_start
    from slime_hpc.trainer.model import Blueprint

    _, place = parallel.join(context)
    experiment = context.experiment
    blueprint = Blueprint.read(experiment)
    policy = roster.make_policy(experiment, blueprint, place)
    roster.load_folder(policy, experiment, blueprint)
    assert experiment.warm_start is not None
    warm_start.run(experiment, experiment.warm_start, policy, place, lambda kind, **values: None)
    checkpoint.save(context.run, 0, policy, None)
    parallel.leave()


def main() -> None:
    """Everything, in order."""
    names = sys.argv[1:] or list(ALGORITHMS)
    torch.set_num_threads(1)
    first = context_of("warm", ("steps=1",))
    with serve(first) as (serving, server):
        cpu.install()
        warm_start(first)
        export(first, first.run, 0, Path("models/warm"))
        server.wait_healthy(f"{serving.url}/health", timeout_s=240)
        for name in names:
            settings = (f"steps={STEPS}", "warm_start=", "model.path=models/warm", "model.init=pretrained", *ALGORITHMS[name])
            context = context_of(name, settings)
            train(context, serving, first.run.token)
            if name == "grpo":
                export(context, context.run, STEPS, Path("models/grpo"))


if __name__ == "__main__":
    main()
