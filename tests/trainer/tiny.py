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


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
SIGMOID = {**EXPERTS, "n_routed_experts": 8, "first_k_dense_replace": 1, "n_shared_experts": 1, "routed_scaling_factor": 2.5}
LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "num_key_value_heads": 4,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "num_experts": 4, "norm_topk_prob": True}),
    "glm4": ("Glm4", {"pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "glm4-moe": ("Glm4Moe", {**SIGMOID, "attention_bias": True, "use_qk_norm": True}),
    "deepseek-v3": ("DeepseekV3", {**SIGMOID, **LATENT, "n_group": 2, "topk_group": 1}),
}
"""Prefix of the transformers classes, and sizes beside SIZES."""


def hf_model(kind: str, *, tied: bool, seed: int = 1) -> Any:
    """A float32 model whose norms and biases are not trivial."""
    import transformers

    prefix, own = KINDS[kind]
    sizes = {key: value for key, value in SIZES.items() if not (key == "head_dim" and kind == "deepseek-v3")}
    config = getattr(transformers, f"{prefix}Config")(**{**sizes, **own}, tie_word_embeddings=tied, attn_implementation="eager")
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.08 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.05 * torch.randn(buffer.shape, generator=generator))
    return model.float().eval()


def state(model: Any) -> dict[str, torch.Tensor]:
    """Its weights by the names of a saved folder: transformers holds all experts of a layer in one tensor."""
    named: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            named[name] = tensor
            continue
        prefix, part = name.rsplit(".", 1)
        for index, expert in enumerate(tensor):
            parts = zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True) if part == "gate_up_proj" else [(part, expert)]
            named |= {f"{prefix}.{index}.{each}.weight": matrix for each, matrix in parts}
    return named


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


def samples(*, broken: int | None = None, stale: int = 0) -> list[Sample]:
    """16 samples in 4 groups, of different lengths, one with masked tokens; `broken` has no log-probs, odd ones are of version `stale`."""
    random = np.random.default_rng(7)
    made = []
    for i in range(16):
        prompt, response = int(random.integers(1, 12)), int(random.integers(1, 25))
        mask = np.ones(response, np.uint8)
        if i == 5:
            mask[: response // 2] = 0
        made.append(
            Sample(
                group=i // 4, index=i % 4,
                prompt_tokens_P=random.integers(0, VOCAB, prompt).astype(np.int32),
                response_tokens_R=random.integers(0, VOCAB, response).astype(np.int32),
                logprobs_R=random.normal(-5, 1, response).astype(np.float32) * (np.nan if i == broken else 1),
                loss_mask_R=mask, reward=float(random.random()), reward_failed=False, finish=Finish.STOP,
                weight_version=stale * (i % 2), weight_version_last=stale * (i % 2), text="",
            )
        )  # fmt: skip
    return made


def write_batch(path: Path, *, broken: int | None = None, stale: int = 0) -> None:
    """The batch of the samples."""
    path.unlink(missing_ok=True)
    hdf5.seal(path, collate(samples(broken=broken, stale=stale), step=1, weight_version=0))
