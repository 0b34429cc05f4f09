"""What tests of several folders share: a real Slurm cluster on this machine, and real engines. Heavy modules are imported in fixtures."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parent / "slurm" / "cluster.sh"
_UP_S = 60


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; review them with git diff")


@pytest.fixture
def golden(request):
    """Compare a text with a file in the test's folder golden/."""

    def check(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; if it should, run pytest --update-golden"

    return check


@dataclass(frozen=True, slots=True)
class Cluster:
    """Four nodes n1 to n4, as topologies/test-cluster.toml says; SLURM_CONF of this process names it."""

    root: Path

    @property
    def conf(self) -> Path:
        """slurm.conf."""
        return self.root / "slurm.conf"

    def run(self, *command: str, timeout_s: float = 60.0) -> str:
        """Standard output of a Slurm command, given as a user of a login node would."""
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        assert result.returncode == 0, f"{command}: {result.stderr}"
        return result.stdout.strip()

    def log(self, name: str) -> str:
        """Log of slurmctld or of a node's slurmd."""
        return (self.root / "log" / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def kill_node(self, name: str) -> None:
        """Power failure of a node."""
        _script(self.root, "kill-node", name)

    def start_node(self, name: str) -> None:
        """Bring a killed node back."""
        _script(self.root, "start-node", name)


def _script(root: Path, *arguments: str) -> None:
    environment = {**os.environ, "ROOT": str(root), "OWNER": str(os.getpid())}
    result = subprocess.run([_SCRIPT, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_UP_S)
    if result.returncode:
        pytest.fail(f"cluster.sh {' '.join(arguments)}: {result.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def cluster():
    """The cluster. It ends with this process, however that ends."""
    root = Path(f"/tmp/slime-hpc-cluster.{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(root / "slurm.conf"))
        _script(root, "reap")
        try:
            _script(root, "up")
            yield Cluster(root)
        finally:
            _script(root, "down")


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
