import contextlib

import pytest
from places import LocalPlace, SlurmPlace

# Slurm, the shell, srun and submitit all get to see the path.
HOSTILE = 'O\'Neil "runs"; $(touch pwned) 100% #1'


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def place(request, tmp_path):
    if request.param == "slurm":
        request.getfixturevalue("cluster")
    with contextlib.closing((LocalPlace if request.param == "local" else SlurmPlace)(tmp_path / HOSTILE)) as place:
        yield place
