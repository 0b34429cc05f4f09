import pytest

from slime_hpc import assets
from slime_hpc.errors import ConfigError


@pytest.mark.parametrize("kind", ["sbatch", "topologies", "recipes"])
def test_what_ships_is_there(kind):
    assert assets.folder(kind).is_dir()


def test_names():
    assert {"demo", "smollm2-arithmetic"} <= set(assets.available("recipes"))
    assert {"local", "test-cluster"} <= set(assets.available("topologies"))


def test_an_installed_package_brings_its_own(tmp_path, monkeypatch):
    """In a wheel the folders lie below the package, since the checkout's top level is not installed."""
    (tmp_path / "_data" / "topologies").mkdir(parents=True)
    (tmp_path / "_data" / "topologies" / "wheel.toml").touch()
    monkeypatch.setattr(assets, "_PACKAGE", tmp_path)
    assert assets.available("topologies") == ["wheel"]


def test_a_path_or_a_name(tmp_path):
    path = tmp_path / "demo.toml"
    path.touch()
    assert assets.find("recipes", str(path), where="x") == path
    assert assets.find("recipes", "demo", where="x") == assets.folder("recipes") / "demo.toml"


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("dmeo", "There is no recipe 'dmeo'.", "did you mean 'demo'?"),
        ("zzz", "There is no recipe 'zzz'.", "there are: demo"),
        ("a/demo", "There is no file a/demo.", "correct the path"),
        ("demo.toml", "There is no file demo.toml.", "correct the path"),
        ("..", "There is no recipe '..'.", "there are: demo"),
    ],
)
def test_what_is_not_there(tmp_path, monkeypatch, name, what, fix):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        assets.find("recipes", name, where="experiment")
    assert (caught.value.what, caught.value.where) == (what, "experiment")
    assert fix in caught.value.fix
