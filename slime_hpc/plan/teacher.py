"""Whether a teacher can judge the policy's tokens: the same vocabulary, and sizes that the trainer's parallel sizes divide.

Reads config.json and tokenizer.json of both folders with the standard library alone.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from slime_hpc.config.schema import Experiment
from slime_hpc.errors import DataError, PlanError
from slime_hpc.plan.model_config import ModelConfig, read_model_config


def read_teacher(experiment: Experiment, model: ModelConfig) -> ModelConfig:
    """The teacher's sizes. Raises DataError for a folder that is none, PlanError for one that does not fit; both name teacher.path."""
    assert experiment.teacher is not None
    own, folder = Path(experiment.model.path), Path(experiment.teacher.path)
    try:
        teacher = read_model_config(folder, needs_weights=True)
    except DataError as error:
        raise DataError(error.what, where=error.where.replace("model.path", "teacher.path"), fix=error.fix) from error
    if teacher.vocab_size != model.vocab_size:
        raise PlanError(
            f"The teacher has a vocabulary of {teacher.vocab_size}, the policy one of {model.vocab_size}.",
            where=f"teacher.path; {folder / 'config.json'}: vocab_size",
            fix="use a teacher of the same model family",
        )
    tokens, ours = _vocabulary(folder), _vocabulary(own)
    if tokens and ours and tokens != ours:
        differing = sum(ours.get(token) != number for token, number in tokens.items())
        raise PlanError(
            f"The teacher's tokenizer numbers {differing} tokens otherwise than the policy's.",
            where=f"teacher.path; {folder / 'tokenizer.json'}",
            fix="use a teacher with the policy's own tokenizer",
        )
    _check_parallel(experiment, teacher)
    return teacher


def _vocabulary(folder: Path) -> dict[str, int]:
    """Token to number; empty where there is no tokenizer.json (an engine's own tokenizer is the policy's in any case)."""
    try:
        value: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        added = {entry["content"]: entry["id"] for entry in value.get("added_tokens", [])}
        listed = value["model"]["vocab"]
        return {**(listed if isinstance(listed, dict) else {entry[0]: i for i, entry in enumerate(listed)}), **added}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _check_parallel(experiment: Experiment, teacher: ModelConfig) -> None:
    trainer = experiment.trainer
    sizes = dataclasses.asdict(teacher)
    splits = [(trainer.tensor_parallel, "tensor_parallel", key) for key in ("num_heads", "num_kv_heads", "ffn_size", "vocab_size")]
    for size, key, name in [*splits, (trainer.pipeline_parallel, "pipeline_parallel", "num_layers")]:
        if sizes[name] % size:
            raise PlanError(
                f"The teacher's {name} = {sizes[name]} does not divide by trainer.{key} = {size}.",
                where=f"teacher.path, trainer.{key}",
                fix="use other parallel sizes, or another teacher",
            )
