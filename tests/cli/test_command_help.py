"""What the command costs before it does anything, and that every command can be reached."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from slime_hpc.cli.main import COMMANDS, main

HEAVY = ("numpy", "torch", "h5py", "pydantic", "rich", "jinja2", "submitit", "transformers", "aiohttp")
# As the installed command does it.
HELP = [sys.executable, "-c", "from slime_hpc.cli.main import main; main(['--help'])"]


def test_help_lists_every_command_and_imports_nothing_heavy():
    code = (
        "import sys, json; from slime_hpc.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(result.stderr)
    assert "click" in loaded
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in COMMANDS if f"  {name} " not in result.stdout] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    result = CliRunner().invoke(main, [name, "--help"], prog_name="slime-hpc")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: slime-hpc {name} ")


def test_an_unknown_command_exits_2():
    result = CliRunner().invoke(main, ["sumbit"])
    assert result.exit_code == 2
    assert "sumbit" in result.output
