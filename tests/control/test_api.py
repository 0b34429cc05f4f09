import inspect

import pytest

from slime_hpc.control import api
from slime_hpc.control.api import Controller
from slime_hpc.control.client import ControllerClient

CALLS = [name for name, member in vars(Controller).items() if inspect.isfunction(member) and not name.startswith("_")]


@pytest.mark.parametrize("name", CALLS)
def test_the_client_has_every_call_with_the_same_parameters(name):
    asked, given = (
        [(p.name, p.kind, p.default) for p in inspect.signature(getattr(kind, name)).parameters.values()]
        for kind in (Controller, ControllerClient)
    )
    assert asked == given


def test_the_protocol_has_the_calls_of_the_table():
    """Every line of the table in the docstring is one call, but for the status, which people ask for."""
    requests = [line.split()[:2] for line in api.__doc__.splitlines() if line.startswith(("    POST", "    GET"))]
    assert len(requests) == len(CALLS) + 1
