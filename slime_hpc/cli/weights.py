"""`slime-hpc weights`: what the engines of a live run hold. Asks them through their addresses; changes nothing."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from slime_hpc.cli.arguments import find_run, json_option, run_argument, runs_option
from slime_hpc.config.schema import Experiment
from slime_hpc.control.endpoint import Endpoint, read
from slime_hpc.errors import RunFolderError, UserError
from slime_hpc.launch.saved import load_saved
from slime_hpc.plan.job import JobPlan
from slime_hpc.run_folder import RunFolder

if TYPE_CHECKING:
    from slime_hpc.sync.audit import Holdings


@click.group()
def weights() -> None:
    """What the engines of a live run hold."""


@weights.command("verify", short_help="Compare engines with one another, and with the trainer's checkpoint.")
@run_argument
@runs_option
@json_option
def verify_weights(run: str, runs: str, as_json: bool) -> None:
    """Compare the engines of a live run with one another, and with the trainer's checkpoint of the same step where there is one.

    All engines must say the same version and hold the same bytes. Against the checkpoint, on CPU clusters the checksum of every parameter
    is compared, everywhere the log-probs of greedy answers to fixed prompts. Run it where the engines can be reached, with the job's
    packages. Exit code 1, with the engine's name, when one differs.
    """
    folder = find_run(run, runs)
    experiment, topology, plan = load_saved(folder)
    endpoints = _engines(folder, plan)
    try:
        from slime_hpc.sync.audit import look
    except ModuleNotFoundError as error:
        raise UserError(f"Weights are looked at with the package {error.name}.", fix="use the job's environment") from error
    held = look(endpoints, folder.token.read_text(encoding="ascii").strip())
    found: dict[str, Any] = {"engines": list(held.engines), "version": held.version, "checkpoint": False}
    if (folder.checkpoint(held.version) / "COMPLETE").is_file():
        comparable = topology.accelerator == "cpu" and experiment.sync.quantization == "none"
        found |= {"checkpoint": True} | _with_trainer(folder, experiment, endpoints, held, checksums=comparable)
    click.echo(json.dumps(found) if as_json else _words(found))


def _engines(run: RunFolder, plan: JobPlan) -> list[Endpoint]:
    """The engines of the newest attempt. Raises RunFolderError when they are not known."""
    newest = max((int(path.name) for path in run.attempts.iterdir() if path.name.isdigit()), default=0)
    names = [f"{role.name}-{rank}" for role in plan.of_kind("engines") for rank in range(role.num_tasks)]
    found = {name: read(run.endpoint(newest, name)) for name in names}
    missing = [name for name, endpoint in found.items() if endpoint is None]
    if missing or not names:
        raise RunFolderError(
            f"Attempt {newest} of the run has no address of {', '.join(missing) or 'any engine'}.",
            where=str(run.endpoint(newest, "")),
            fix="wait until the run generates; `slime-hpc status` says how it stands",
        )
    return [endpoint for endpoint in found.values() if endpoint is not None]


def _with_trainer(run: RunFolder, experiment: Experiment, engines: list[Endpoint], held: Holdings, *, checksums: bool) -> dict[str, Any]:
    """Parameters whose checksums are the checkpoint's, and the largest difference of a log-prob."""
    from slime_hpc.sync.audit import compare_with_trainer
    from slime_hpc.sync.verify import verify
    from slime_hpc.trainer.saved_policy import open_policy

    logging.getLogger("megatron").setLevel(logging.ERROR)
    token = run.token.read_text(encoding="ascii").strip()
    with contextlib.redirect_stdout(sys.stderr), open_policy(run, experiment, held.version) as policy:
        equal = compare_with_trainer(held, policy.tensors, num_kv_heads=policy.sizes.num_kv_heads) if checksums else 0
        difference = verify(
            engines,
            token,
            version=held.version,
            vocab_size=policy.sizes.vocab_size,
            score=policy.score,
            tolerance=experiment.sync.verify_tolerance,
        )
    return {"equal_parameters": equal, "logprob_abs_diff_max": difference}


def _words(found: dict[str, Any]) -> str:
    lines = [f"{len(found['engines'])} engines hold version {found['version']}, with the same checksums"]
    if not found["checkpoint"]:
        return f"{lines[0]}\nthere is no checkpoint of step {found['version']}: they were compared with one another only"
    if found["equal_parameters"]:
        lines.append(f"{found['equal_parameters']} parameters are those of the checkpoint, bit for bit")
    return "\n".join([*lines, f"greedy log-probs differ from the checkpoint's by at most {found['logprob_abs_diff_max']:.2g}"])
