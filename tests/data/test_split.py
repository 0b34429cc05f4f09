from hypothesis import given

from slime_hpc.data.collate import collate
from slime_hpc.data.split import split
from slime_hpc.testing.strategies import samples


def plain(sample):
    """Arrays as lists, so that samples compare."""
    names = type(sample).__dataclass_fields__
    return {name: getattr(sample, name).tolist() if name.endswith(("_P", "_R")) else getattr(sample, name) for name in names}


@given(given_samples=samples())
def test_what_was_collated_splits_into_the_same_samples(given_samples):
    back = list(split(collate(given_samples, step=3, weight_version=2)))
    # What UTF-8 has no bytes for is stored as "?".
    expected = [{**plain(sample), "text": sample.text.encode(errors="replace").decode()} for sample in given_samples]
    assert [plain(sample) for sample in back] == expected
