"""The batch script: goldens, and values that try to become code."""

import shlex
import subprocess
from pathlib import Path

import pytest

from slime_hpc.errors import PlanError

TWO_AND_TWO = ("trainer.nodes=2", "rollout.groups=[{engines=2, nodes=2}]")
ON_GPUS = ("trainer.nodes=2", "trainer.tensor_parallel=2", "rollout.groups=[{engines=8, gpus_per_engine=2}]", 'model.dtype="bfloat16"')
SITE = ('slurm.account="proj1"', 'slurm.qos="long"', 'slurm.extra=["--reservation=course"]')


def bash_n(script):
    result = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stderr) == (0, "")


def test_golden_of_one_node(render, golden):
    script = render("local")
    golden("local.sbatch", script)
    bash_n(script)


def test_golden_of_the_test_cluster(render, golden):
    script = render("test-cluster", TWO_AND_TWO)
    golden("test-cluster.sbatch", script)
    bash_n(script)


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis", "enroot"])
def test_golden_of_containers(render, golden, gpu_cluster, runtime):
    script = render(gpu_cluster, (*ON_GPUS, *SITE, f'container.runtime="{runtime}"', 'container.image="/images/slime hpc.sif"'))
    golden(f"{runtime}.sbatch", script)
    bash_n(script)


def test_a_job_is_requeued_only_where_the_site_and_the_budget_allow_it(render, gpu_cluster):
    settings = (*ON_GPUS, *SITE, 'container.image="i.sif"')
    assert "--requeue" in directives(render(gpu_cluster, settings))
    assert "--no-requeue" in directives(render(gpu_cluster, (*settings, "slurm.max_requeues=0")))
    Path(gpu_cluster).write_text(Path(gpu_cluster).read_text().replace("[node]", 'forbidden = ["--requeue"]\n\n[node]'))
    assert "--no-requeue" in directives(render(gpu_cluster, settings))


def test_a_script_has_as_many_lines_for_many_nodes_as_for_few(render, gpu_cluster):
    few, many = (
        render(gpu_cluster, (*SITE, 'container.image="i.sif"', f"trainer.nodes={n}", f"rollout.groups=[{{engines={4 * n}}}]", *batch))
        for n, batch in ((2, ()), (32, ("rollout.prompts_per_step=64",)))
    )
    assert len(few.splitlines()) == len(many.splitlines())
    assert max(map(len, many.splitlines())) < max(map(len, few.splitlines())) + 20


HOSTILE = [
    "a b",
    "a'b",
    'a"b',
    "a;touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a#b",
    " #SBATCH --begin=now+9hours",
    "a&b|c>d",
    "*?[x]",
    "~",
    "-rf",
    "50%j",
    "ü",
    "!x",
    "{{ python }}",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_name_stays_a_word(render, name, tmp_path):
    run, python = tmp_path / name / "r", tmp_path / f"bin {name}" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    script = render(run=run, python=str(python))
    result = subprocess.run(["bash", "-s"], input=script, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["-m", "slime_hpc.launch.supervisor", str(run)]
    assert not list(tmp_path.rglob("pwned"))
    assert directives(script) == [*directives(render())[:-2], f"--chdir={run}", f"--output={str(run).replace('%', '%%')}/attempts/%j.log"]


def directives(script):
    """As sbatch reads them: from lines that begin so, until the first command, split as a shell would."""
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    words = [shlex.split(line.removeprefix("#SBATCH ")) for line in lines]
    assert all(len(word) == 1 for word in words)
    return [word[0] for word in words]


@pytest.mark.parametrize("name", ["a\nb", "a\n#SBATCH --uid=0", "a\rb", "a\\b", "a\x1bb"])
def test_a_folder_name_that_slurm_cannot_take_is_refused(render, name):
    with pytest.raises(PlanError) as caught:
        render(run=Path("/scratch") / name)
    assert caught.value.exit_code == 2
    assert caught.value.fix


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("slurm.account=a b", "--account=a b"),
        ("slurm.account=$(touch pwned)", "--account=$(touch pwned)"),
        ("slurm.partition=p;q", "--partition=p;q"),
        ("slurm.qos=q #r", "--qos=q #r"),
        ('slurm.extra=["--comment=it\'s"]', "--comment=it's"),
    ],
)
def test_a_slurm_setting_stays_one_option(render, setting, line):
    script = render(settings=[setting])
    bash_n(script)
    assert line in directives(script)


@pytest.mark.parametrize("setting", ['slurm.account="a\\nb"', 'slurm.extra=["--a\\n#SBATCH --b"]', 'slurm.extra=["touch pwned"]'])
def test_a_slurm_setting_with_a_line_break_or_without_a_dash_is_refused(render, setting):
    with pytest.raises(PlanError, match="is no sbatch option"):
        render(settings=[setting])


def test_environment_and_modules_are_quoted(render, tmp_path):
    topology = tmp_path / "t.toml"
    text = (Path(__file__).parents[2] / "topologies" / "test-cluster.toml").read_text()
    topology.write_text(
        text.replace("nodes = 4", 'nodes = 4\nmodules = ["a;touch pwned"]').replace(
            "[environment]", "[environment]\nV = '''$(touch pwned)'\n'''"
        )
    )
    (tmp_path / "python").write_text('#!/bin/bash\nprintf %s "$V"\n')
    (tmp_path / "python").chmod(0o755)
    script = "module() { echo module:$#:$2; }\n" + render(str(topology), python=str(tmp_path / "python"))
    result = subprocess.run(["bash", "-s"], input=script, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert result.stdout == "module:2:a;touch pwned\n$(touch pwned)'\n"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", ["A B", "A;touch pwned", "A=1", "", "1A", "A\nB"])
def test_a_variable_needs_a_name(render, tmp_path, name):
    topology = tmp_path / "t.toml"
    text = (Path(__file__).parents[2] / "topologies" / "test-cluster.toml").read_text()
    topology.write_text(f"{text}{name!r} = 'x'\n" if "\n" not in name else text + '"A\\nB" = "x"\n')
    with pytest.raises(PlanError, match="is no name of an environment variable"):
        render(str(topology))


@pytest.mark.parametrize("name", ["a:b", "a,b"])
def test_a_run_folder_that_no_container_can_mount_is_refused(render, gpu_cluster, name):
    with pytest.raises(PlanError, match="cannot be mounted"):
        render(gpu_cluster, (*SITE, 'container.image="i.sif"'), run=Path("/scratch") / name)


def test_every_value_of_the_template_passes_a_filter():
    template = (Path(__file__).parents[2] / "sbatch" / "job.sbatch.j2").read_text()
    values = [part.partition("}}")[0] for part in template.split("{{")[1:]]
    assert values
    assert all(value.split("|")[-1].strip() in {"sh", "comment", "identifier", "directive"} for value in values)
