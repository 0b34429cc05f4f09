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
