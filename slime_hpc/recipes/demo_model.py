"""The demo's model folder: a Qwen3 of 435,000 parameters and a character tokenizer, made from nothing.

`write(folder)` made recipes/demo_model; weights are not in it, since the experiment draws them (model.init = "random").
"""

from __future__ import annotations

import json
import string
from pathlib import Path

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
TEMPLATE = "Spell this word backward (example: sun -> nus): "
"""One token, so that a prompt is five tokens long."""


def write(folder: Path) -> None:
    """Write config.json, generation_config.json and the tokenizer."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = sorted({" ", *string.ascii_letters})
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", "<unk>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    fast.add_tokens([AddedToken(TEMPLATE, normalized=False)])
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "pad_token_id": 0}, indent=2) + "\n", encoding="utf-8")
