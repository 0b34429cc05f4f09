"""What README.md shows is so: its files load, its commands run as they stand there, its tables name what there is.

A fenced block is taken by its kind; one of an unknown kind is an error. Files of the README are put into an empty folder under their
names, and commands run there. Stand-ins are what belongs to a site: a model folder of the size that the README names, and, where a job
runs, the tests' own cluster under the name of the README's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from slime_hpc import assets
from slime_hpc.cli.main import main
from slime_hpc.config.names import load as load_name
from slime_hpc.config.schema import Reward
from slime_hpc.data.prompt import Prompt
from slime_hpc.data.prompt_file import read_prompts
from slime_hpc.data.sample import Finish
from slime_hpc.observe import events
from slime_hpc.rollout.reward import make_scorer
from slime_hpc.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
KINDS = {"sh", "text", "toml", "json", "python"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w.-]+)`:\n\n\Z")
_RUN_S = 900.0


@dataclass(frozen=True)
class Block:
    """One fenced block; `file` is the name that ends the paragraph before it: "`first.toml`:", or ""."""

    kind: str
    text: str
    file: str

    @property
    def commands(self) -> list[str]:
        return self.text.splitlines()


def _block(found: re.Match[str]) -> Block:
    file = _FILE.search(README[: found.start()])
    return Block(found[1], found[2], file[1] if file else "")


BLOCKS = [_block(found) for found in _FENCE.finditer(README)]
FILES = {block.file: block.text for block in BLOCKS if block.file}
SHELL = [block for block in BLOCKS if block.kind == "sh"]

SET_UP = [block for block in SHELL if block.text.startswith("make ")]
"""Run by CI itself (`make test`), or what it is made of; see test_make_knows_the_targets."""
ON_THE_CLUSTER = [block for block in SHELL if re.search(r"^slime-hpc (submit|status|logs|cancel|resume) ", block.text)]
HERE = [block for block in SHELL if block not in SET_UP and block not in ON_THE_CLUSTER]

COVERED = {"make demo": "tests/e2e/test_demo.py::test_the_demo_prints_one_object_last"}
"""A run of minutes, and the test that makes it."""


def table(*heading: str) -> list[list[str]]:
    """The cells of the table with this heading."""
    start = README.index(f"| {' | '.join(heading)} |\n")
    rows = README[start:].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def shell(text: str, folder: Path) -> subprocess.Popen[str]:
    """Start commands as they stand in the README, in bash; a failing one ends it."""
    command = f'slime-hpc() {{ PYTHONPATH={shlex.quote(str(ROOT))}:${{PYTHONPATH-}} {sys.executable} -m slime_hpc.cli.main "$@"; }}'
    return subprocess.Popen(
        ["bash", "-c", f"set -e\n{command}\n{text}"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(text: str, folder: Path, *, timeout_s: float = 120.0) -> str:
    with shell(text, folder) as process:
        output, errors = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, errors
    return output


def plain(text: str) -> list[str]:
    """Lines without the blank that tables are padded with."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.fixture
def folder(tmp_path):
    """A user's folder: the README's files, and the model that one of them names."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    model = tmp_path / tomllib.loads(FILES["mine.toml"])["model"]["path"]
    model.mkdir(parents=True)
    sizes = {
        "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": True,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], **sizes}))
    (model / "model.safetensors").touch()
    return tmp_path


def test_every_block_is_of_a_kind_that_is_tested():
    assert [block for block in BLOCKS if block.kind not in KINDS] == []
    assert README.count("```") == 2 * len(BLOCKS)
    assert [block for block in BLOCKS if block.kind in {"toml", "json"} and not block.file] == []
    assert all(BLOCKS[index - 1] in HERE for index, block in enumerate(BLOCKS) if block.kind == "text")
    assert min(len(SET_UP), len(ON_THE_CLUSTER), len(HERE)) > 0


def test_no_other_text_has_blocks_that_no_test_runs():
    """topologies/README.md is run by tests/topology."""
    texts = [*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md")]
    assert {str(path.relative_to(ROOT)) for path in texts if "```" in path.read_text()} == {"README.md", "topologies/README.md"}


def test_make_knows_the_targets():
    commands = [command for block in SET_UP for command in block.commands]
    assert {"make demo", "make test", "make check", "make venv"} <= set(commands)
    for command in commands:
        if command == "source .venv/bin/activate":
            continue
        assert re.fullmatch(r"make \w+( PYTEST_ARGS=[\w/]+)?", command)
        # -n prints what would be done.
        done = subprocess.run([*shlex.split(command), "-n"], cwd=ROOT, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
    makefile = (ROOT / "Makefile").read_text()
    assert "\ntest: check\n" in makefile
    assert "\n\t$(BIN)/slime-hpc demo\n" in makefile
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("command", COVERED)
def test_what_another_test_covers_is_covered(command):
    path, _, name = COVERED[command].partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()
    assert command in [each for block in SET_UP for each in block.commands]


@pytest.mark.parametrize("block", HERE, ids=lambda block: block.commands[-1])
def test_the_commands_run(block, folder):
    output = run(block.text, folder)
    after = BLOCKS[BLOCKS.index(block) + 1]
    if after.kind == "text":
        assert plain(output) == plain(after.text)
    else:
        assert output


def test_the_prompt_file_is_one(folder):
    assert len(read_prompts(folder / "train.jsonl", prompt_key="prompt", answer_key="answer", where="README.md")) == 2


def test_the_reward_scores(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    prompt = Prompt(content="What is 12 * 7?", answer="84")
    assert load_name("my_rewards:score", where="README.md")(prompt, "It is 84 in all.", Finish.STOP, last=3) == 1
    scorer = make_scorer(Reward(kind="my_rewards:score"), workers=1)
    try:
        scores = scorer.score([(prompt, text, Finish.STOP) for text in ("It is 84.", "It is 48.", "")])
    finally:
        scorer.close()
    assert [(score.value, score.error) for score in scores] == [(1, ""), (0, ""), (0, "")]


@pytest.mark.slow
@pytest.mark.slurm
def test_the_first_run_on_a_cluster(folder, cluster, monkeypatch):
    """Steps 5 and after, on a real Slurm: submitted and waited for, looked at, cancelled when its controller is up, resumed to the end."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    (folder / "my-cluster.toml").write_text((assets.folder("topologies") / "test-cluster.toml").read_text())
    submit, after = ON_THE_CLUSTER
    with shell(submit.text, folder) as waiting:
        deadline = time.monotonic() + 180
        while not list(folder.glob("runs/first/*/control/status.json")):
            assert waiting.poll() is None, waiting.communicate()[1]
            assert time.monotonic() < deadline, "the controller did not begin"
            time.sleep(0.2)
        output = run(after.text, folder, timeout_s=_RUN_S)
        _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert "The run ended CANCELLED" in errors
    assert re.search(r"^job +\d+ RUNNING$", output, flags=re.MULTILINE)
    assert re.search(r"^job \d+: CANCELLED$", output, flags=re.MULTILINE)
    assert re.search(r"^job +\d+ COMPLETED$", run("slime-hpc status first", folder), flags=re.MULTILINE)

    (path,) = folder.glob("runs/first/*")
    _check_the_run_folder(RunFolder(path))
    _check_the_numbers(RunFolder(path))
    (reader,) = (block.text for block in BLOCKS if block.kind == "python" and not block.file)
    printed = subprocess.run([sys.executable, "-c", reader], cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout
    assert [line.split()[:2] for line in printed.splitlines()] == [["1", "256"], ["2", "256"], ["3", "256"]]


def _check_the_run_folder(run: RunFolder) -> None:
    listed = {name.rstrip("/") for cell, what in table("path", "what") for name in code(cell)}
    assert listed == {path.name for path in run.path.iterdir()}
    assert run.path.stat().st_mode & 0o77 == 0


def _check_the_numbers(run: RunFolder) -> None:
    seen = {(event["kind"], name) for event in events.read(run.metrics) for name in event}
    # The recipe `demo` has sync.verify on.
    assert {(code(kind)[0], name) for kind, cell, _ in table("kind", "value", "what") for name in code(cell)} <= seen


def test_the_map_is_complete():
    listed = [code(cell)[0] for cell, _ in table("package", "what")]
    assert sorted(listed) == sorted(f"slime_hpc/{path.parent.name}" for path in (ROOT / "slime_hpc").glob("*/__init__.py"))


def test_what_is_named_exists():
    links = re.findall(r"\]\(([^)]+)\)", README)
    headings = {f"#{line.lower().replace(' ', '-')}" for line in re.findall(r"^#+ (.*)$", README, flags=re.MULTILINE)}
    paths = {name for name in code(_FENCE.sub("", README)) if re.match(r"(containers|tests|tools|sbatch|topologies|slime_hpc)/", name)}
    assert len(paths) > 10
    assert [link for link in links if link not in headings and not (ROOT / link).exists()] == []
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("text", sorted({name for name in code(_FENCE.sub("", README)) if name.startswith("slime-hpc ")}))
def test_a_command_in_the_text_exists(text):
    command: click.Command = main
    for word in text.split()[1:]:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        assert found is not None, word
        command = found
