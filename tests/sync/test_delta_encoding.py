import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.errors import DeltaError
from slime_hpc.sync.delta import encoding
from slime_hpc.sync.delta.chunks import CHUNK_BYTES, Crew, bytes_of, checksum, digest, slices
from slime_hpc.sync.delta.encoding import ENCODINGS
from slime_hpc.sync.delta.gaps import changes

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.int8, torch.int32, torch.int64]


def bits(itemsize, size, seed, density, *, small):
    """An array of random bits, and one in which a share of the elements has changed, a little or into anything."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(f"u{itemsize}")
    old = np.frombuffer(rng.bytes(size * itemsize), dtype)
    new = old.copy()
    changed = rng.random(size) < density
    step = rng.choice(np.array([1, 2, -1, -2], f"i{itemsize}").view(dtype), size)
    new[changed] = (old + step if small else np.frombuffer(rng.bytes(size * itemsize), dtype))[changed]
    return old, new


@pytest.mark.parametrize("name", ENCODINGS)
@given(
    itemsize=st.sampled_from([1, 2, 4, 8]),
    size=st.one_of(st.integers(0, 300), st.integers(300, 100_000)),
    density=st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5, 1.0]),
    small=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_encoded_is_restored_bit_by_bit(name, itemsize, size, density, small, seed):
    old, new = bits(itemsize, size, seed, density, small=small)
    chosen = encoding.load(name)
    blob = chosen.encode(old, new)
    target = old.copy()
    chosen.apply(target, blob)
    assert target.tobytes() == new.tobytes()
    assert bool(blob) == (old.tobytes() != new.tobytes())


@given(
    itemsize=st.sampled_from([1, 2, 4, 8]),
    size=st.integers(0, 5_000),
    density=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_changes_are_those_of_a_plain_comparison(itemsize, size, density, seed):
    old, new = bits(itemsize, size, seed, density, small=False)
    position_K, change_K = changes(old, new)
    assert position_K.tolist() == [i for i in range(size) if old[i] != new[i]]
    assert ((old[position_K] + change_K) == new[position_K]).all()


@pytest.mark.parametrize("name", ENCODINGS)
@given(data=st.data())
def test_a_damaged_difference_is_refused_or_writes_within_its_tensor(name, data):
    old, new = bits(2, 4_000, data.draw(st.integers(0, 99)), 0.02, small=True)
    chosen = encoding.load(name)
    blob = bytearray(chosen.encode(old, new))
    kind = data.draw(st.sampled_from(["cut", "flip"]))
    at = data.draw(st.integers(0, len(blob) - 1))
    if kind == "cut":
        damaged = bytes(blob[: max(at, 1)])
    else:
        blob[at] ^= data.draw(st.integers(1, 255))
        damaged = bytes(blob)
    memory = np.zeros(12_000, np.uint16)
    memory[4_000:8_000] = old
    if kind == "cut":
        with pytest.raises(DeltaError):
            chosen.apply(memory[4_000:8_000], damaged)
    else:
        try:
            chosen.apply(memory[4_000:8_000], damaged)
        except DeltaError as error:
            assert error.what
    assert not memory[:4_000].any()
    assert not memory[8_000:].any()


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_difference_of_a_longer_tensor_is_refused(name):
    old, new = bits(2, 5_000, 0, 0.1, small=True)
    blob = encoding.load(name).encode(old, new)
    with pytest.raises(DeltaError):
        encoding.load(name).apply(old[:2_000].copy(), blob)


def test_gaps_are_smaller_than_xor_where_one_in_a_hundred_changed():
    old, new = bits(2, 2**20, 0, 0.01, small=True)
    assert len(encoding.load("gaps").encode(old, new)) < 0.6 * len(encoding.load("xor").encode(old, new))


def test_an_unknown_encoding_is_named():
    with pytest.raises(DeltaError, match="'lzma'"):
        encoding.load("lzma")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bits_of_any_dtype(dtype):
    tensor = torch.arange(-8, 8).to(dtype).reshape(4, 4).t()
    assert bytes_of(tensor).view(f"u{dtype.itemsize}").size == 16
    assert torch.equal(torch.from_numpy(bytes_of(tensor)).view(dtype).view(4, 4), tensor)
    assert bytes_of(torch.ones((), dtype=dtype)).size == dtype.itemsize
    assert bytes_of(torch.ones((0, 3), dtype=dtype)).size == 0


def test_the_checksum_is_that_of_the_chunks_in_order_whatever_the_threads():
    array = np.random.default_rng(0).integers(0, 256, 2 * CHUNK_BYTES + 17, np.uint8)
    parts = slices(array.size)
    assert [part.stop - part.start for part in parts] == [CHUNK_BYTES, CHUNK_BYTES, 17]
    plain = checksum(digest(array[part]) for part in parts)
    crew = Crew(3)
    assert checksum(crew.map(lambda part: digest(array[part]), parts)) == plain
    assert checksum(digest(array[part]) for part in reversed(parts)) != plain
    crew.close()


def test_a_crew_keeps_the_order_and_passes_the_first_error_on():
    crew = Crew(2)
    assert list(crew.map(lambda i: i * i, range(50))) == [i * i for i in range(50)]
    with pytest.raises(ZeroDivisionError):
        list(crew.map(lambda i: 1 // (i - 20), range(50)))
    assert list(crew.map(str, range(3))) == ["0", "1", "2"]
    crew.close()
