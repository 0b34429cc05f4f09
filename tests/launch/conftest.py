import contextlib

import pytest
from places import LocalPlace, SlurmPlace


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def place(request, tmp_path):
    if request.param == "slurm":
        request.getfixturevalue("cluster")
    with contextlib.closing((LocalPlace if request.param == "local" else SlurmPlace)(tmp_path)) as place:
        yield place
