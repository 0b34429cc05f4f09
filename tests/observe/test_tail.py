from slime_hpc.observe.tail import Tail


def test_each_line_is_read_once_and_only_when_it_is_whole(tmp_path):
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.lines() == ["one"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"o\n\nthr\xc3")
    assert tail.lines() == ["two", ""]
    with path.open("ab") as file:
        file.write(b"\xa4e\n")
    assert tail.lines() == ["thräe"]
