import json

import pytest

from slime_hpc.errors import DataError
from slime_hpc.plan.model_config import read_model_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip


def read(folder, values, *, needs_weights=False):
    (folder / "config.json").write_text(json.dumps(values))
    return read_model_config(folder, needs_weights=needs_weights)


def test_sizes_of_smollm2(tmp_path):
    config = read(tmp_path, LLAMA)
    assert (config.head_dim, config.num_kv_heads, config.tied, config.max_positions) == (64, 3, True, 8192)
    # The folder's own count is 134,515,008 with the norms: 61 x 576.
    assert config.num_parameters == 134_515_008 - 61 * 576


def test_defaults_of_transformers(tmp_path):
    config = read(tmp_path, {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "tie_word_embeddings")})
    assert (config.num_kv_heads, config.tied) == (9, False)


QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
GLM_45_AIR = {
    "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151552, "n_routed_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": True,
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


@pytest.mark.parametrize(("values", "billions"), [(QWEN3_30B, 30.5), (GLM_45_AIR, 107), (DEEPSEEK_V3, 671)])
def test_parameters_are_those_that_the_models_are_known_for(tmp_path, values, billions):
    assert read(tmp_path, values).num_parameters / 1e9 == pytest.approx(billions, rel=5e-3)


def test_experts_latents_and_rotation_are_read(tmp_path):
    qwen, glm, deepseek = (read(tmp_path, values) for values in (QWEN3_30B, GLM_45_AIR, DEEPSEEK_V3))
    assert all(qwen.experts.layers) and (qwen.experts.count, qwen.experts.shared_ffn_size, qwen.rotary_dim) == (128, 0, 128)
    assert glm.experts.layers == (False,) + 45 * (True,) and (glm.experts.shared_ffn_size, glm.rotary_dim) == (1408, 64)
    assert (glm.qkv_bias, glm.qk_norm, qwen.qkv_bias, qwen.qk_norm) == (True, False, False, True)
    assert sum(deepseek.experts.layers) == 58 and (deepseek.head_dim, deepseek.rotary_dim, deepseek.cache_values) == (192, 64, 576)
    sparse = read(tmp_path, {**QWEN3_30B, "decoder_sparse_step": 2, "mlp_only_layers": [3]}).experts.layers
    assert [i for i, has in enumerate(sparse[:8]) if has] == [1, 5, 7]


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({**LLAMA, "architectures": ["MambaForCausalLM"]}, "holds a MambaForCausalLM"),
        ({**LLAMA, "architectures": []}, "holds a none"),
        ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "has no 'vocab_size'"),
        ({**LLAMA, "hidden_size": "wide"}, "'wide'"),
        ([], "is not a JSON object"),
    ],
)
def test_a_config_that_cannot_be_used(tmp_path, values, what):
    with pytest.raises(DataError, match=what) as caught:
        read(tmp_path, values)
    assert caught.value.where and caught.value.fix


def test_a_folder_that_is_missing_or_is_no_model(tmp_path):
    with pytest.raises(DataError, match="no model folder"):
        read_model_config(tmp_path / "none", needs_weights=True)
    with pytest.raises(DataError, match=r"no config\.json"):
        read_model_config(tmp_path, needs_weights=True)
    (tmp_path / "config.json").write_text('{"architectures": ')
    with pytest.raises(DataError, match="is not JSON"):
        read_model_config(tmp_path, needs_weights=True)


def test_weights_are_asked_for_when_they_are_needed(tmp_path):
    with pytest.raises(DataError, match="no safetensors weights"):
        read(tmp_path, LLAMA, needs_weights=True)
    (tmp_path / "model.safetensors").touch()
    assert read(tmp_path, LLAMA, needs_weights=True)
