from slime_hpc.control.interface import collective_environment, interface_of


def test_the_loopback_address_has_an_interface():
    name = interface_of("127.0.0.1")
    assert name
    assert collective_environment("127.0.0.1") == {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def test_an_address_of_another_machine_has_none():
    assert interface_of("203.0.113.7") is None
    assert collective_environment("203.0.113.7") == {}
