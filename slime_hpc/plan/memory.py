"""Estimated memory of one trainer rank and one engine, to catch a plan that cannot fit before it waits in a queue.

Trainer, a parameter: weight 2 or 4 bytes, gradient 4 (fp32), optimizer 12 (fp32 copy and two moments) sharded over data and context
parallel; of experts over those ranks that hold the same ones.
Activations of a layer, a token: about 34 x hidden bytes in bf16 (Korthikanti et al. 2022, eq. 2, without the attention matrix),
double in fp32.

Engine: weights, and a cache for the requests in flight, each twice max_tokens long. What does not fit waits its turn in the engine,
so the cache takes what is left at most; it must hold one request.
"""

from __future__ import annotations

from slime_hpc.config.schema import Experiment, Trainer
from slime_hpc.plan.job import MemoryEstimate, RolePlan
from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.topology.schema import Topology

_GIB = 2.0**30
_ENGINE_FRACTION = 0.88
"""Of a GPU's memory, for weights and cache; SGLang's own default (mem_fraction_static) is near it."""


def estimate(
    experiment: Experiment, topology: Topology, model: ModelConfig, roles: tuple[RolePlan, ...], teacher: ModelConfig | None = None
) -> tuple[MemoryEstimate, ...]:
    """One estimate for the trainer, and one for each group of engines."""
    return tuple(_estimate(role, experiment, topology, model, teacher) for role in roles if role.kind in ("trainer", "engines"))


def _on_a_rank(model: ModelConfig | None, trainer: Trainer) -> float:
    """Parameters of a model that one rank holds."""
    if model is None:
        return 0.0
    dense = model.num_dense_parameters / (trainer.tensor_parallel * trainer.pipeline_parallel)
    return dense + model.num_expert_parameters / (trainer.pipeline_parallel * trainer.expert_parallel * trainer.expert_tensor_parallel)


def _estimate(
    role: RolePlan, experiment: Experiment, topology: Topology, model: ModelConfig, teacher: ModelConfig | None
) -> MemoryEstimate:
    width = 4 if experiment.model.dtype == "float32" else 2
    available = float(topology.node.gpu_memory_gib) if topology.accelerator == "cuda" else role.memory_gib / role.tasks_per_node
    if role.kind == "trainer":
        trainer = experiment.trainer
        dense = model.num_dense_parameters / (trainer.tensor_parallel * trainer.pipeline_parallel)
        of_experts = trainer.pipeline_parallel * trainer.expert_parallel * trainer.expert_tensor_parallel
        experts = model.num_expert_parameters / of_experts
        parameters = dense + experts
        sharded = dense / max(1, role.num_tasks // (trainer.tensor_parallel * trainer.pipeline_parallel))
        sharded += experts / max(1, role.num_tasks // of_experts)
        layers = 1 if trainer.recompute else model.num_layers / trainer.pipeline_parallel
        activations = trainer.tokens_per_gpu * model.hidden_size * 17 * width * layers / trainer.tensor_parallel
        # The critic is as large as the policy, and is trained too; reference and teacher have weights alone.
        trained = 2 if experiment.critic else 1
        frozen = (parameters if experiment.algorithm.kl_coef > 0 else 0.0) + _on_a_rank(teacher, trainer)
        return MemoryEstimate(
            role=role.name,
            weights_gib=(trained * parameters + frozen) * width / _GIB,
            gradients_gib=trained * parameters * 4 / _GIB,
            optimizer_gib=trained * sharded * 12 / _GIB,
            activations_gib=activations / _GIB,
            cache_gib=0.0,
            available_gib=available,
        )
    group = experiment.rollout.groups[role.group]
    context = experiment.rollout.context_length or model.max_positions
    token = model.num_layers * model.cache_values * width / (1 if model.latent else group.gpus_per_engine)
    engines = sum(g.engines for g in experiment.rollout.groups)
    running = min(experiment.rollout.concurrency, experiment.rollout.prompts_per_step * experiment.rollout.samples_per_prompt) / engines
    weights = model.num_parameters * width / group.gpus_per_engine / _GIB
    answer = min(context, 2 * experiment.rollout.max_tokens) * token / _GIB
    wanted = max(1.0, running) * answer
    return MemoryEstimate(
        role=role.name,
        weights_gib=weights,
        gradients_gib=0.0,
        optimizer_gib=0.0,
        activations_gib=0.0,
        cache_gib=max(answer, min(wanted, _ENGINE_FRACTION * available - weights)) if available else wanted,
        available_gib=available,
    )
