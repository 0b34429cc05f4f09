"""Every shipped topology renders: a golden each, and no word that the site refuses or the shell misreads."""

import subprocess
from pathlib import Path

import pytest

from slime_hpc import assets
from slime_hpc.topology.load import load_topology

SYSTEMS = [name for name in assets.available("topologies") if load_topology(name).scheduler.kind == "slurm" and name != "test-cluster"]


@pytest.fixture
def script(render):
    """The demo on two trainer nodes and two engine nodes of a system, asked for as a user there would."""

    def script(system):
        topology = load_topology(system)
        folder = f"{topology.shared[0]}/runs" if topology.shared else "/scratch/runs"
        gpus = topology.node.gpus
        settings = [
            f"slurm.account=project{topology.scheduler.account_suffix}",
            "container.image=/images/slime-hpc.sif",
            f"runs={folder}",
            "trainer.nodes=2",
            f"rollout.groups=[{{engines={2 * gpus}}}]",
        ]
        return render(system, settings, run=Path(folder) / "demo" / "20300101-000000-abcd")

    return script


@pytest.mark.parametrize("system", SYSTEMS)
def test_golden(system, script, golden):
    golden(f"system-{system}.sbatch", script(system))


@pytest.mark.parametrize("system", SYSTEMS)
def test_bash_and_shellcheck_find_nothing(system, script, tmp_path):
    path = tmp_path / "job.sbatch"
    path.write_text(script(system))
    for command in (["bash", "-n", path], ["shellcheck", path]):
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_script_holds_what_the_site_wants_and_nothing_it_forbids(system, script):
    scheduler, text = load_topology(system).scheduler, script(system)
    directives = [line.removeprefix("#SBATCH ").partition("=")[0] for line in text.splitlines() if line.startswith("#SBATCH")]
    steps = [line for line in text.splitlines() if line.startswith("#   srun ")]
    assert len(steps) == 4
    assert [name for name in scheduler.forbidden if name in directives or any(f" {name}=" in step for step in steps)] == []
    assert [option for option in scheduler.directives if option.partition("=")[0] not in directives] == []
    assert [option for option in scheduler.srun_options for step in steps if option not in step] == []
    assert len(directives) == len(set(directives))
    assert ("--container-image" in text) == (load_topology(system).container.runtime == "pyxis")
    assert not any(name.startswith("--container") for name in directives)


def test_what_differs_between_sites(script):
    def directives(system):
        return [line.removeprefix("#SBATCH ") for line in script(system).splitlines() if line.startswith("#SBATCH")]

    assert {"--account=project@h100", "--qos=qos_gpu_h100-t3", "--constraint=h100", "--gres=gpu:4"} <= set(directives("jean-zay-h100"))
    assert {"--account=project_g", "--constraint='gpu&hbm80g'", "--mem=229G"} <= set(directives("perlmutter"))
    assert "--segment=4" in directives("gb200-nvl72")
    assert "--wait-all-nodes=1" in directives("aws-p5")
    assert "apptainer exec --rocm" in script("frontier") and "--nv" not in script("frontier")


def test_a_gpu_type_is_named(render, gpu_cluster, tmp_path):
    path = tmp_path / "typed.toml"
    path.write_text(Path(gpu_cluster).read_text().replace("[scheduler]", '[scheduler]\ngpu_type = "a100"\ngpu_directive = "gres"'))
    text = render(str(path), ["slurm.account=a", "container.image=i"])
    assert "#SBATCH --gres=gpu:a100:4\n" in text
    assert text.count(" --gres=gpu:a100:") == 3  # the job, the trainer, the engines
    assert text.count(" --gres=none ") == 2


def test_kernels_are_cached_on_the_node_in_a_folder_of_the_job(render):
    text = render()
    lines = [line for line in text.splitlines() if "CACHE" in line or "WORKSPACE" in line]
    shell = "\n".join([*lines, "env"])
    environment = {"SLURM_JOB_ID": "77", "PATH": "/usr/bin:/bin"}
    result = subprocess.run(["bash", "-euc", shell], env=environment, capture_output=True, text=True, timeout=30, check=True)
    values = dict(line.split("=", 1) for line in result.stdout.splitlines() if line.startswith(("TRITON", "TORCHINDUCTOR")))
    assert values["TRITON_CACHE_DIR"].startswith("/tmp/slime-hpc-") and values["TRITON_CACHE_DIR"].endswith("-77/triton")
    assert values["TORCHINDUCTOR_CACHE_DIR"].endswith("-77/inductor")
    assert "TRITON_CACHE_DIR" not in render("local")


def test_a_container_sees_the_caches_and_prefers_their_names_to_its_own(script):
    assert "--bind /tmp:/tmp" in script("leonardo")
    assert "/local_scratch:/local_scratch" in script("aws-p5")
    assert "--container-env=" in script("h100-pyxis") and ",TRITON_CACHE_DIR," in script("h100-pyxis")
