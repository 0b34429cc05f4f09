"""Which parallel sizes a model divides by. Pure."""

from __future__ import annotations

from slime_hpc.config.schema import Experiment
from slime_hpc.errors import PlanError
from slime_hpc.plan.model_config import ModelConfig


def check_parallel(experiment: Experiment, model: ModelConfig) -> None:
    """Raises PlanError for a model that the parallel sizes of trainer or engines do not divide."""
    trainer = experiment.trainer
    engine_sizes = [(f"rollout.groups[{i}].gpus_per_engine", g.gpus_per_engine) for i, g in enumerate(experiment.rollout.groups)]
    for key, size in [("trainer.tensor_parallel", trainer.tensor_parallel), *engine_sizes]:
        for what, count in (
            ("attention heads", model.num_heads),
            ("key-value heads", model.num_kv_heads),
            ("feed-forward channels", model.ffn_size),
            ("channels of the shared experts", model.experts.shared_ffn_size if model.experts else 0),
        ):
            _divide(count, what, key, size, experiment)
    if trainer.sequence_parallel and trainer.tensor_parallel == 1:
        raise PlanError(
            "trainer.sequence_parallel splits activations between tensor-parallel ranks; there is one.",
            where="trainer.sequence_parallel, trainer.tensor_parallel",
            fix="remove trainer.sequence_parallel, or raise trainer.tensor_parallel",
        )
    if model.num_layers % trainer.pipeline_parallel:
        raise PlanError(
            f"{model.num_layers} layers do not divide by trainer.pipeline_parallel = {trainer.pipeline_parallel}.",
            where="trainer.pipeline_parallel",
            fix=f"use a divisor of {model.num_layers}",
        )
    if model.vocab_size % trainer.tensor_parallel:
        raise PlanError(
            f"A vocabulary of {model.vocab_size} does not divide by trainer.tensor_parallel = {trainer.tensor_parallel}.",
            where="trainer.tensor_parallel",
            fix=f"use a divisor of {model.vocab_size}",
        )


def check_experts(experiment: Experiment, model: ModelConfig, ranks: int) -> None:
    """Raises PlanError for experts that cannot be placed on the trainer's ranks."""
    trainer, experts = experiment.trainer, model.experts
    sizes = [("trainer.expert_parallel", trainer.expert_parallel), ("trainer.expert_tensor_parallel", trainer.expert_tensor_parallel)]
    if experts is None:
        for key, size in sizes:
            if size > 1:
                raise PlanError(f"{key} = {size}, but a {model.architecture} has no experts.", where=key, fix=f"remove {key}")
        return
    _divide(experts.count, "experts", *sizes[0], experiment)
    _divide(experts.ffn_size, "channels of an expert", *sizes[1], experiment)
    if trainer.tensor_parallel > 1 and not trainer.sequence_parallel:
        raise PlanError(
            f"Experts with trainer.tensor_parallel = {trainer.tensor_parallel} need each token on one rank alone.",
            where="trainer.sequence_parallel",
            fix="set trainer.sequence_parallel = true",
        )
    stage, places = ranks // trainer.pipeline_parallel, trainer.expert_parallel * trainer.expert_tensor_parallel
    if stage % places:
        raise PlanError(
            f"{ranks} ranks / {trainer.pipeline_parallel} pipeline stages = {stage} ranks a stage, which do not divide by "
            f"expert_parallel {trainer.expert_parallel} x expert_tensor_parallel {trainer.expert_tensor_parallel} = {places}.",
            where="trainer.expert_parallel, trainer.expert_tensor_parallel, trainer.nodes, trainer.gpus_per_node",
            fix=f"make the product a divisor of {stage}",
        )


def _divide(count: int, what: str, key: str, size: int, experiment: Experiment) -> None:
    if count % size:
        raise PlanError(
            f"{count} {what} do not divide by {key} = {size} ({count} / {size} = {count / size:g}).",
            where=f"{key}; {experiment.model.path}/config.json",
            fix=f"use a divisor of {count}: {', '.join(str(d) for d in range(1, count + 1) if count % d == 0)}",
        )
