"""Tiny Hugging Face models, and a batch for them, for the trainer's checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from slime_hpc.config.schema import Experiment
from slime_hpc.data.collate import collate
from slime_hpc.data.sample import Finish, Sample
from slime_hpc.store import hdf5

VOCAB = 256
TEMPERATURE = 0.8
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "initializer_range": 0.05,
}  # fmt: skip


def hf_model(kind: str, *, tied: bool, seed: int = 1) -> Any:
    """A float32 model whose norms and biases are not trivial."""
    import transformers

    prefix = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    config = getattr(transformers, f"{prefix}Config")(**SIZES, tie_word_embeddings=tied, attn_implementation="eager")
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.08 * noise)
    return model.float().eval()


def experiment(folder: Path, **trainer: Any) -> Experiment:
    """An experiment on a model folder."""
    own = trainer.pop("algorithm", {})
    beside = {name: trainer.pop(name) for name in ("critic", "teacher") if name in trainer}
    optimizer = {"lr": 1e-3, "warmup_steps": 2, "decay": "linear", "weight_decay": 0.01}
    return Experiment.model_validate(
        {
            "name": "checks",
            "steps": 10,
            "model": {"path": str(folder), "dtype": trainer.pop("dtype", "float32")},
            "data": {"source": "none:none"},
            "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4, "temperature": TEMPERATURE},
            "algorithm": own,
            **beside,
            "trainer": {"tokens_per_gpu": 96, "optimizer": optimizer, **trainer},
        }
    )


def write_batch(path: Path, *, seed: int = 7, broken: int | None = None) -> list[Sample]:
    """16 samples in 4 groups, of different lengths, one with masked tokens; `broken` has no log-probs."""
    random = np.random.default_rng(seed)
    samples = []
    for i in range(16):
        prompt, response = int(random.integers(1, 12)), int(random.integers(1, 25))
        mask = np.ones(response, np.uint8)
        if i == 5:
            mask[: response // 2] = 0
        samples.append(
            Sample(
                group=i // 4, index=i % 4,
                prompt_tokens_P=random.integers(0, VOCAB, prompt).astype(np.int32),
                response_tokens_R=random.integers(0, VOCAB, response).astype(np.int32),
                logprobs_R=random.normal(-5, 1, response).astype(np.float32) * (np.nan if i == broken else 1),
                loss_mask_R=mask, reward=float(random.random()), reward_failed=False, finish=Finish.STOP,
                weight_version=0, weight_version_last=0, text="",
            )
        )  # fmt: skip
    path.unlink(missing_ok=True)
    hdf5.seal(path, collate(samples, step=1, weight_version=0))
    return samples
