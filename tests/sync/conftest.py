import contextlib

import pytest
import torch
from transformers import AutoModelForCausalLM

from slime_hpc.config.schema import Sync
from slime_hpc.testing.engines import launch_engine, make_context, make_role, make_run, make_tiny_model, wait_ready
from slime_hpc.testing.transport_contract import Rig


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def pushed_model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("pushed"), seed=7)


@pytest.fixture(scope="session")
def first_model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("first"), seed=0)


@pytest.fixture(scope="session")
def engines(run, first_model):
    """One engine of one rank (with a prefix cache), one of two, started from other weights than the tests push."""
    with contextlib.ExitStack() as stack:
        starting = [
            stack.enter_context(launch_engine(run, first_model, name="one", deterministic=False)),
            stack.enter_context(launch_engine(run, first_model, name="two", tensor_parallel=2)),
        ]
        for endpoint, server in starting:
            wait_ready(endpoint, server)
        yield [endpoint for endpoint, _ in starting]


@pytest.fixture
def rig(run, engines, pushed_model):
    model = AutoModelForCausalLM.from_pretrained(pushed_model, dtype=torch.float32).eval()
    return Rig(engines, run.token.read_text(), model, model.config.vocab_size)


@pytest.fixture
def context(run, pushed_model):
    return make_context(run, make_role("trainer", "trainer"), model={"path": str(pushed_model), "dtype": "float32"})


@pytest.fixture
def settings():
    return Sync(timeout_s=30.0, bucket_mib=1)
