import pytest

from slime_hpc.errors import ConfigError
from slime_hpc.trainer.options import configure, of_model, of_optimizer


def test_each_option_goes_to_the_configuration_that_has_it():
    options = {"attention_dropout": 0.1, "overlap_param_gather": True, "bf16": True}
    assert of_model(options) == {"attention_dropout": 0.1, "bf16": True}
    assert of_optimizer(options) == {"overlap_param_gather": True}


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("attention_dropuot", "OptimizerConfig have no 'attention_dropuot'. Did you mean 'attention_dropout'?"),
        ("overlap_param_gathr", "Did you mean 'overlap_param_gather'?"),
        ("tensor_model_parallel_size", "is what trainer.tensor_parallel says"),
        ("lr", "is what trainer.optimizer.lr says"),
    ],
)
def test_an_option_that_cannot_be_given(key, what):
    with pytest.raises(ConfigError) as caught:
        of_model({key: 1})
    assert what in caught.value.what and key in caught.value.where and caught.value.fix


def test_what_megatron_refuses_is_said_in_its_own_words():
    from megatron.core.transformer import TransformerConfig

    with pytest.raises(ConfigError, match=r"Megatron refuses its configuration: .*num_attention_heads"):
        configure(TransformerConfig, {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 3}, {"tensor_model_parallel_size": 2})
