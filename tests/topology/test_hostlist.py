import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.errors import ConfigError
from slime_hpc.topology.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3,7],gpu01", ["n1", "n2", "n3", "n7", "gpu01"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
    ],
)
def test_expand(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1"], "n1"),
        (["n0", "n1", "n2"], "n[0-2]"),
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n08", "n09", "n10"], "n[08-09],n10"),
        (["a", "b"], "a,b"),
        (["n3", "n1"], "n[3,1]"),
    ],
)
def test_compress(names, text):
    assert compress(names) == text


@pytest.mark.parametrize("text", ["n[1-", "n1-3]", "n[a-b]", "n[]", "n[1-2-3]"])
def test_what_is_no_host_list_is_refused(text):
    with pytest.raises(ConfigError, match="is not a host list"):
        expand(text)


host = st.builds("{}{}{}".format, st.sampled_from(["n", "gpu", "r1n", "a-b"]), st.sampled_from(["", "0", "00"]), st.integers(0, 120))


@given(st.lists(host, max_size=20))
def test_a_compressed_list_expands_to_the_same_names(names):
    assert expand(compress(names)) == names


def test_a_list_of_neighbours_does_not_grow_with_the_nodes():
    assert len(compress([f"n{i}" for i in range(5000)])) < 12


@pytest.mark.slurm
@pytest.mark.parametrize("text", ["n[1-3,7],gpu01", "n[08-11]", "r[1-2]n[0-1]", "n[0-12]"])
def test_slurm_expands_alike(cluster, text):
    assert cluster.run("scontrol", "show", "hostnames", text).splitlines() == expand(text)
    assert cluster.run("scontrol", "show", "hostnames", compress(expand(text))).splitlines() == expand(text)
