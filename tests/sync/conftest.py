import pytest
import torch
from transformers import AutoModelForCausalLM

from slime_hpc.config.schema import Sync
from slime_hpc.sync.engine_api import Engines
from slime_hpc.testing.engines import make_context, make_role
from slime_hpc.testing.transport_contract import Rig


@pytest.fixture(scope="session")
def run(engine_run):
    return engine_run


@pytest.fixture
def rig(run, engines, pushed_model):
    model = AutoModelForCausalLM.from_pretrained(pushed_model, dtype=torch.float32).eval()
    yield Rig(engines, run.token.read_text(), model, model.config.vocab_size)
    # A failed push leaves engines paused, as it must; the tests of other folders use the same ones.
    Engines(engines, run.token.read_text()).all(lambda engine: engine.resume(timeout_s=60))


@pytest.fixture
def context(run, pushed_model):
    return make_context(run, make_role("trainer", "trainer"), model={"path": str(pushed_model), "dtype": "float32"})


@pytest.fixture
def settings():
    return Sync(timeout_s=30.0, bucket_mib=1)
