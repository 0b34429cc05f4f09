"""From an experiment and a topology to a job plan, or to an error that shows the arithmetic. Reads the model's config.json, no more."""

from __future__ import annotations

from pathlib import Path

from slime_hpc.config.algorithms import WITH_SIBLINGS
from slime_hpc.config.schema import Experiment
from slime_hpc.data.prompt_file import read_prompts
from slime_hpc.errors import PlanError
from slime_hpc.plan.job import JobPlan, MemoryEstimate
from slime_hpc.plan.memory import estimate
from slime_hpc.plan.model_config import ModelConfig, read_model_config
from slime_hpc.plan.parallel_rules import check_experts, check_parallel
from slime_hpc.plan.partition import partition, trainer_ranks_per_node
from slime_hpc.plan.site_rules import check_site
from slime_hpc.plan.teacher import read_teacher
from slime_hpc.topology.schema import Topology


def plan_job(experiment: Experiment, topology: Topology) -> JobPlan:
    """The plan. Raises PlanError or DataError; has no effect but reading."""
    model = read_model_config(Path(experiment.model.path), needs_weights=experiment.model.init == "pretrained")
    check_parallel(experiment, model)
    teacher = read_teacher(experiment, model) if experiment.teacher else None
    _check_routes(experiment, model)
    roles = partition(experiment, topology)
    ranks = trainer_ranks_per_node(experiment, topology) * experiment.trainer.nodes
    data_parallel = ranks // experiment.trainer.model_ranks
    check_experts(experiment, model, ranks)
    _check_batch(experiment, data_parallel)
    _check_lengths(experiment, model)
    num_nodes = 1 + max(role.nodes[-1] for role in roles)
    check_site(experiment, topology, num_nodes)
    memory = estimate(experiment, topology, model, roles, teacher)
    for part in memory:
        _check_memory(part)
    return JobPlan(
        name=experiment.name,
        scheduler=topology.scheduler.kind,
        accelerator=topology.accelerator,
        num_nodes=num_nodes,
        roles=roles,
        memory=memory,
        data_parallel=data_parallel,
    )


def check_prompt_files(experiment: Experiment) -> None:
    """Read the prompt files that the experiment names (Parquet only where pyarrow is installed). Raises DataError."""
    data, evaluation = experiment.data, experiment.eval
    if data.prompts is not None:
        _read(Path(data.prompts), data.prompt_key, data.answer_key, "data.prompts")
    if evaluation is not None and evaluation.prompts is not None:
        _read(Path(evaluation.prompts), "prompt", "answer", "eval.prompts")


def _read(path: Path, prompt_key: str, answer_key: str, where: str) -> None:
    read_prompts(path, prompt_key=prompt_key, answer_key=answer_key, where=where)


def _check_batch(experiment: Experiment, data_parallel: int) -> None:
    rollout, updates = experiment.rollout, experiment.trainer.updates_per_step
    if rollout.prompts_per_step % updates:
        raise PlanError(
            f"{rollout.prompts_per_step} prompts a step / {updates} updates = {rollout.prompts_per_step / updates:g}, not a whole number.",
            where="rollout.prompts_per_step, trainer.updates_per_step",
            fix="make updates_per_step a divisor of prompts_per_step",
        )
    samples = rollout.prompts_per_step // updates * rollout.samples_per_prompt
    if samples % data_parallel:
        raise PlanError(
            f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples / {updates} updates = {samples} samples an update; "
            f"{samples} / {data_parallel} data-parallel ranks = {samples / data_parallel:g}, not a whole number.",
            where="rollout.prompts_per_step, rollout.samples_per_prompt, trainer.updates_per_step",
            fix=f"make the samples of an update a multiple of {data_parallel}",
        )
    start = experiment.warm_start
    if start is not None and start.samples_per_step % data_parallel:
        raise PlanError(
            f"{start.samples_per_step} demonstrations a step / {data_parallel} data-parallel ranks = "
            f"{start.samples_per_step / data_parallel:g}, not a whole number.",
            where="warm_start.samples_per_step",
            fix=f"a multiple of {data_parallel}",
        )
    advantage = experiment.algorithm.advantage
    if advantage in WITH_SIBLINGS and rollout.samples_per_prompt < 2:
        raise PlanError(
            f"{advantage} compares the answers to one prompt; with one answer every advantage is 0.",
            where="rollout.samples_per_prompt",
            fix="at least 2",
        )


def _check_routes(experiment: Experiment, model: ModelConfig) -> None:
    if experiment.algorithm.route_replay and model.experts is None:
        raise PlanError(
            f"{experiment.model.path} holds a {model.architecture} without experts: there are no routes to replay.",
            where="algorithm.route_replay",
            fix="remove it",
        )


def _check_lengths(experiment: Experiment, model: ModelConfig) -> None:
    rollout = experiment.rollout
    longest = rollout.context_length or model.max_positions
    if longest and rollout.max_tokens >= longest:
        raise PlanError(
            f"rollout.max_tokens = {rollout.max_tokens} leaves no room for a prompt in a context of {longest}.",
            where="rollout.max_tokens, rollout.context_length",
            fix=f"below {longest}",
        )
    if model.max_positions and rollout.context_length > model.max_positions:
        raise PlanError(
            f"rollout.context_length = {rollout.context_length} exceeds the model's {model.max_positions} positions.",
            where="rollout.context_length",
            fix=f"at most {model.max_positions}",
        )


def _check_memory(part: MemoryEstimate) -> None:
    if part.available_gib and part.total_gib > part.available_gib:
        trains = part.role == "trainer"
        raise PlanError(
            f"{part.role}: weights {part.weights_gib:.1f} + gradients {part.gradients_gib:.1f} + optimizer {part.optimizer_gib:.1f} "
            f"+ activations {part.activations_gib:.1f} + cache {part.cache_gib:.1f} = {part.total_gib:.1f} GiB; "
            f"it has {part.available_gib:.1f}.",
            where="trainer.tensor_parallel, trainer.tokens_per_gpu" if trains else "rollout.groups, rollout.max_tokens",
            fix="raise the parallel sizes, lower tokens_per_gpu, or set trainer.recompute = true" if trains else "raise gpus_per_engine",
        )
