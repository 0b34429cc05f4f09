import json

import pytest

from slime_hpc.config.load import validate
from slime_hpc.config.schema import Experiment
from slime_hpc.topology.schema import Topology

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}  # fmt: skip


def with_changes(values, changes):
    """A copy of nested tables with `table__key` changed."""
    values = json.loads(json.dumps(values))
    for key, value in changes.items():
        *tables, name = key.split("__")
        place = values
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = value
    return values


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A model folder as far as a plan looks into it: the sizes of Qwen3-0.6B."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture(scope="session")
def make_experiment(model_folder):
    def make(**changes):
        values = {"name": "x", "model": {"path": str(model_folder)}, "data": {"prompts": "p"}}
        return validate(Experiment, with_changes(values, changes), {}, default_origin="x.toml")

    return make


@pytest.fixture(scope="session")
def make_topology():
    def make(**changes):
        node = {"gpus": 8, "cpus": 64, "memory_gib": 500, "gpu_memory_gib": 80}
        values = {"name": "c", "accelerator": "cuda", "nodes": 8, "scheduler": {"kind": "slurm"}, "node": node}
        return validate(Topology, with_changes(values, changes), {}, default_origin="c.toml")

    return make
