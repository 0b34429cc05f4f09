import json

import pytest

from slime_hpc.errors import ConfigError, PlanError
from slime_hpc.rollout.server_args import check_fields, cpu_environment, devices, engine_args
from slime_hpc.sync.quantize import BLOCK
from slime_hpc.testing.engines import make_context, make_role
from slime_hpc.testing.engines import make_run as run_of


@pytest.fixture
def arguments(tmp_path):
    def build(accelerator="cpu", **experiment):
        role = make_role("engines", "engines")
        context = make_context(run_of(tmp_path), role, **{"model": {"path": "model"}, **experiment})
        topology = context.topology.model_copy(update={"accelerator": accelerator})
        return engine_args(context.experiment, topology, role, host="10.0.0.1", port=21000, nccl_port=21001)

    return build


def test_a_cpu_engine_needs_no_kernel_and_sleeps_when_idle(arguments):
    value = arguments()
    assert value["device"] == "cpu"
    assert value["attention_backend"] == "torch_native"
    assert value["sampling_backend"] == "pytorch"
    assert value["sleep_on_idle"]
    assert value["enable_deterministic_inference"]


def test_a_cuda_engine_leaves_kernels_to_sglang(arguments):
    value = arguments(accelerator="cuda")
    assert {"device", "attention_backend", "sampling_backend", "max_total_tokens"}.isdisjoint(value)
    assert value["dtype"] == "bfloat16"


def test_the_experiment_decides(arguments):
    value = arguments(
        model={"path": "m", "init": "random", "dtype": "float32"},
        deterministic=False,
        seed=3,
        rollout={"context_length": 40_000, "concurrency": 5, "groups": [{"gpus_per_engine": 2}]},
    )
    assert (value["load_format"], value["dtype"], value["random_seed"]) == ("dummy", "float32", 3)
    assert not value["enable_deterministic_inference"]
    assert (value["tp_size"], value["context_length"], value["max_running_requests"]) == (2, 40_000, 5)
    assert value["max_total_tokens"] >= 2 * 40_000


def test_quantized_engines_make_room_and_wait_for_the_first_push(arguments):
    value = arguments(accelerator="cuda", sync={"quantization": "fp8_block"})
    assert value["load_format"] == "dummy"
    quantization = json.loads(value["json_model_override_args"])["quantization_config"]
    assert (quantization["quant_method"], quantization["weight_block_size"]) == ("fp8", [BLOCK, BLOCK])


def test_what_is_passed_through_comes_last(arguments):
    assert arguments(rollout={"sglang": {"attention_backend": "intel_amx", "log_level": "debug"}})["attention_backend"] == "intel_amx"


@pytest.mark.parametrize("key", ["api_key", "host", "tp_size", "model_path"])
def test_what_the_plan_decides_cannot_be_passed(arguments, key):
    with pytest.raises(ConfigError, match=key) as caught:
        arguments(rollout={"sglang": {key: "x"}})
    assert caught.value.where == f"rollout.sglang.{key}"


def test_no_token_in_arguments(arguments):
    assert "api_key" not in arguments()


def test_an_unknown_argument_gets_the_nearest_name():
    check_fields({"mem_fraction_static": 1}, ["mem_fraction_static", "port"])
    with pytest.raises(ConfigError) as caught:
        check_fields({"mem_fraction_statik": 1}, ["mem_fraction_static", "port"])
    assert caught.value.fix == "did you mean 'mem_fraction_static'?"
    assert caught.value.where == "rollout.sglang.mem_fraction_statik"


@pytest.mark.parametrize(
    ("gpu_first", "gpus", "local_rank", "size", "visible", "expected"),
    [
        (0, 8, 0, 4, None, ["0", "1", "2", "3"]),
        (0, 8, 1, 4, "0,1,2,3,4,5,6,7", ["4", "5", "6", "7"]),
        # The step's own GPUs: counted from its first, under whatever names Slurm gave them.
        (4, 4, 1, 2, "0,1,2,3", ["2", "3"]),
        (4, 4, 1, 2, "4,5,6,7", ["6", "7"]),
        (4, 4, 0, 4, "0,1,2,3,4,5,6,7", ["4", "5", "6", "7"]),
        (4, 4, 1, 2, "", ["6", "7"]),
        (0, 2, 1, 1, "GPU-a,GPU-b", ["GPU-b"]),
    ],
)
def test_devices(gpu_first, gpus, local_rank, size, visible, expected):
    role = make_role("engines", "engines")
    role = type(role)(**{name: getattr(role, name) for name in role.__slots__} | {"gpu_first": gpu_first, "gpus_per_node": gpus})
    assert devices(role, local_rank, size, visible) == expected


def test_too_few_devices_are_told():
    role = make_role("engines", "engines", tasks=2)
    with pytest.raises(PlanError, match="needs GPUs 2 to 3"):
        devices(role, 1, 2, "0,1")


def test_cores_are_shared_between_ranks():
    assert cpu_environment(1, [0, 1, 2], 8)["OMP_NUM_THREADS"] == "3"
    assert cpu_environment(1, [0, 1, 2], 1)["OMP_NUM_THREADS"] == "1"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in cpu_environment(1, [0, 1], 2)
    assert cpu_environment(2, [4, 5, 6, 7], 2)["SGLANG_CPU_OMP_THREADS_BIND"] == "4,5|6,7"
    assert cpu_environment(2, [3], 2)["SGLANG_CPU_OMP_THREADS_BIND"] == "3|3"
