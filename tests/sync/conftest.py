import pytest
import torch
from transformers import AutoModelForCausalLM

from slime_hpc.config.schema import Sync
from slime_hpc.sync.engine_api import Engines
from slime_hpc.testing.engines import launch_engine, make_context, make_role, make_tiny_model, wait_ready
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


@pytest.fixture(scope="session")
def tied_model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tied"), seed=5, tied=True)


@pytest.fixture(scope="session")
def tied_engine(run, engines, tmp_path_factory):
    """An engine of two ranks whose model has tied embeddings, and other weights than `tied_model`."""
    first = make_tiny_model(tmp_path_factory.mktemp("tied-first"), seed=6, tied=True)
    with launch_engine(run, first, name="tied", tensor_parallel=2) as (endpoint, server):
        wait_ready(endpoint, server)
        yield endpoint


@pytest.fixture
def context(run, pushed_model):
    return make_context(run, make_role("trainer", "trainer"), model={"path": str(pushed_model), "dtype": "float32"})


@pytest.fixture
def settings():
    return Sync(timeout_s=30.0, bucket_mib=0.1)
