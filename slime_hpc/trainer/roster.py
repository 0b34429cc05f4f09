"""All models that the trainer's ranks hold: the policy that is trained, and those that the experiment asks for beside it."""

from __future__ import annotations

from dataclasses import dataclass

from slime_hpc.algo.registry import Parts
from slime_hpc.config.schema import Experiment, Model
from slime_hpc.errors import ConfigError
from slime_hpc.run_folder import RunFolder
from slime_hpc.trainer import checkpoint, weights
from slime_hpc.trainer.critic import Critic
from slime_hpc.trainer.kept import Kept
from slime_hpc.trainer.model import Blueprint, PolicyModel, build, transformer_config
from slime_hpc.trainer.optimizer import Optimization
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """What a step trains, and what it compares with."""

    policy: Policy
    optimization: Optimization
    """Of the policy."""
    critic: Critic | None = None
    reference: Policy | None = None
    """The policy before the first RL step."""
    teacher: Policy | None = None
    kept: Kept | None = None
    """Past weights of the policy."""


def make_policy(experiment: Experiment, blueprint: Blueprint, place: Place, *, trainable: bool = True) -> Policy:
    """A policy whose weights are not yet set."""
    config = transformer_config(blueprint, experiment)
    model: PolicyModel = build(blueprint, config, place.device)
    if trainable:
        weights.freeze(model, blueprint.sizes, experiment.trainer.freeze)
    return Policy(model, config, place, trainable=trainable)


def load_folder(policy: Policy, experiment: Experiment, blueprint: Blueprint) -> None:
    """Set the weights from the experiment's model folder, or its seed. Raises DataError."""
    weights.load(policy.model, blueprint.sizes, weights.source_of(experiment, blueprint))


def gather(experiment: Experiment, blueprint: Blueprint, parts: Parts, policy: Policy, place: Place, run: RunFolder) -> Roster:
    """The models beside a policy that holds its first weights. Raises ConfigError and DataError. Collective."""
    trainer, section, algorithm = experiment.trainer, experiment.critic, experiment.algorithm
    if parts.advantage.critic != (section is not None):
        needs = "needs" if parts.advantage.critic else "does not use"
        raise ConfigError(f"algorithm.advantage = {algorithm.advantage!r} {needs} the table [critic].", where="critic")
    return Roster(
        policy=policy,
        optimization=Optimization(
            policy, trainer.optimizer, steps=experiment.steps, max_skipped=trainer.max_skipped_updates, options=trainer.megatron
        ),
        critic=Critic(experiment, section, blueprint, place, like=policy.model) if section else None,
        reference=_reference(experiment, blueprint, place, run) if algorithm.kl_coef else None,
        teacher=_teacher(experiment, place) if experiment.teacher else None,
        kept=Kept(policy.model, past=algorithm.kept_versions) if algorithm.old_logprobs == "generator" else None,
    )


def _reference(experiment: Experiment, blueprint: Blueprint, place: Place, run: RunFolder) -> Policy:
    reference = make_policy(experiment, blueprint, place, trainable=False)
    if experiment.warm_start:
        checkpoint.load(run, 0, reference, None)
    else:
        load_folder(reference, experiment, blueprint)
    return reference


def _teacher(experiment: Experiment, place: Place) -> Policy:
    """Built as the policy is, from an experiment with the teacher as its model."""
    assert experiment.teacher is not None
    model = Model(path=experiment.teacher.path, dtype=experiment.model.dtype)
    taught = experiment.model_copy(update={"model": model})
    blueprint = Blueprint.read(taught)
    teacher = make_policy(taught, blueprint, place, trainable=False)
    load_folder(teacher, taught, blueprint)
    return teacher
