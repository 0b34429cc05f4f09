"""Parts that several folders of tests share. Imports heavy modules only where a fixture is used."""

import contextlib

import pytest


@pytest.fixture(scope="session")
def engine_run(tmp_path_factory):
    """The run folder whose token the session's engines ask for."""
    from slime_hpc.testing.engines import make_run

    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def first_model(tmp_path_factory):
    """What the session's engines start from; `pushed_model` differs in every weight."""
    from slime_hpc.testing.engines import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("first"), seed=0)


@pytest.fixture(scope="session")
def pushed_model(tmp_path_factory):
    from slime_hpc.testing.engines import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("pushed"), seed=7)


@pytest.fixture(scope="session")
def engines(engine_run, first_model):
    """Two real engines: 'one' of one rank, with a prefix cache; 'two' of two ranks, deterministic. Whatever weights they hold."""
    from slime_hpc.testing.engines import launch_engine, wait_ready

    with contextlib.ExitStack() as stack:
        starting = [
            stack.enter_context(launch_engine(engine_run, first_model, name="one", deterministic=False)),
            stack.enter_context(launch_engine(engine_run, first_model, name="two", tensor_parallel=2)),
        ]
        for endpoint, server in starting:
            wait_ready(endpoint, server)
        yield [endpoint for endpoint, _ in starting]
