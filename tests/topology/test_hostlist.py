import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.errors import ConfigError
from slime_hpc.topology.hostlist import compress, expand

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,6}(-0{0,2})?[0-9]{0,3}", fullmatch=True)
RUNS = st.builds(
    lambda prefix, width, first, count: [f"{prefix}{number:0{width}d}" for number in range(first, first + count)],
    st.sampled_from(["n", "gpu-", "r1n", "a.b"]), st.integers(1, 4), st.integers(0, 1200), st.integers(1, 20),
)  # fmt: skip

EXPANDED = [
    ("n1", ["n1"]),
    ("alpha,beta,gamma", ["alpha", "beta", "gamma"]),
    ("n[1-3]", ["n1", "n2", "n3"]),
    ("n[01-03,07],gpu-a[1-2]", ["n01", "n02", "n03", "n07", "gpu-a1", "gpu-a2"]),
    ("n[09-10,1]", ["n09", "n10", "n1"]),
    ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
    ("n[9-11]", ["n9", "n10", "n11"]),
    ("n[099-101]", ["n099", "n100", "n101"]),
    ("n1,n1", ["n1", "n1"]),
    ("n[3,1]", ["n3", "n1"]),
]


@pytest.mark.parametrize(("hostlist", "names"), EXPANDED)
def test_expand(hostlist, names):
    assert expand(hostlist) == names


@pytest.fixture(scope="module")
def hostnames(tmp_path_factory):
    """What Slurm's own parser makes of a host list; it wants a configuration, but no daemon."""
    config = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    config.write_text("ClusterName=x\nSlurmctldHost=localhost\n")

    def hostnames(hostlist):
        command = ["scontrol", "show", "hostnames", hostlist]
        environment = {**os.environ, "SLURM_CONF": str(config)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True).stdout.split()

    return hostnames


@pytest.mark.parametrize(("hostlist", "names"), EXPANDED)
def test_slurm_says_the_same(hostnames, hostlist, names):
    assert hostnames(hostlist) == names


def test_a_suffix_behind_brackets():
    """Slurm 22.05 refuses it, later versions take it."""
    assert expand("gpu-a[1-2]b,c") == ["gpu-a1b", "gpu-a2b", "c"]


@pytest.mark.parametrize(
    ("names", "hostlist"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n1", "n2", "n3"], "n[1-3]"),
        (["n1", "n3"], "n[1,3]"),
        (["n9", "n10"], "n[9-10]"),
        (["n09", "n10"], "n[09-10]"),
        (["n099", "n100", "n101"], "n[099-101]"),
        (["n9", "n010"], "n[9,010]"),
        (["n2", "n1"], "n[2,1]"),
        (["login", "login"], "login,login"),
        (["n1", "gpu1", "n2"], "n1,gpu1,n2"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
    ],
)
def test_compress(names, hostlist):
    assert compress(names) == hostlist
    assert expand(hostlist) == names


def test_slurm_reads_what_compress_writes(hostnames):
    names = [f"n{i:03d}" for i in (7, 8, 9, 99, 100, 101)] + ["login", "gpu9", "gpu10", "gpu010", "r1n1", "r2n1", "gpu8"]
    assert hostnames(compress(names)) == names


@given(st.lists(NAMES, max_size=30))
def test_any_names_come_back(names):
    assert expand(compress(names)) == names


@given(st.lists(RUNS, max_size=4))
def test_runs_come_back(runs):
    names = [name for run in runs for name in run]
    assert expand(compress(names)) == names


@given(RUNS)
def test_a_run_is_one_range(run):
    assert compress(run).count(",") == 0


@pytest.mark.parametrize(
    "hostlist",
    ["n[1-3", "n1-3]", "n[3-1]", "n[]", "n[a-b]", "n[1,]", "n[[1-2]]", "]n[", "n[1-2-3]", "n[0-99999999999]", "n 1", "n[-1]", "n[٣]"],
)
def test_what_is_no_host_list(hostlist):
    with pytest.raises(ConfigError, match="is not a host list") as caught:
        expand(hostlist)
    assert caught.value.fix


@given(st.text("n[]0129,- a", max_size=12))
def test_any_text_expands_or_is_refused(text):
    try:
        names = expand(text)
    except ConfigError:
        return
    assert all(name and not set(name) & set("[], ") for name in names)
    assert expand(compress(names)) == names
