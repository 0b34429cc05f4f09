import inspect
from pathlib import Path

from slime_hpc.run_folder import RunFolder

RUN = RunFolder(Path("/runs/x/1"))


def paths():
    """Every path that a run folder names, by the property or method that names it."""
    of_attempt = {"attempt": (2,), "park_request": (2,), "parked": (2,), "endpoint": (2, "engines-0"), "role": (2, "trainer")}
    values = {**of_attempt, "batch": (7,), "checkpoint": (7,)}
    return {
        name: getattr(RUN, name)(*values[name]) if inspect.isfunction(member) else getattr(RUN, name)
        for name, member in vars(RunFolder).items()
        if isinstance(member, property) or name in values
    }


def test_all_lies_inside_the_folder_and_nothing_has_two_meanings():
    found = paths()
    assert all(path.is_relative_to(RUN.path) and path != RUN.path for path in found.values())
    assert len(set(found.values())) == len(found)


def test_names_sort_as_their_steps_do():
    for name in (RUN.batch, RUN.checkpoint):
        made = [name(step) for step in (1, 9, 10, 99, 100, 12345)]
        assert sorted(made) == made


def test_attempts_never_share_a_file():
    assert RUN.park_request(0) != RUN.park_request(1)
    assert RUN.endpoint(0, "router") != RUN.endpoint(1, "router")
    assert RUN.role(0, "trainer").parent == RUN.attempt(0) != RUN.attempt(1)


def test_naming_makes_nothing(tmp_path):
    for name in dir(RunFolder):
        if isinstance(getattr(RunFolder, name), property):
            getattr(RunFolder(tmp_path / "run"), name)
    assert list(tmp_path.iterdir()) == []
