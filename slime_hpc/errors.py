"""The exception tree of slime-hpc, and what each one tells a user.

    SlimeError                     anything slime-hpc raises on purpose
    ├── UserError                  the input is wrong: exit code 2, one clean message, nothing changed
    │   ├── ConfigError            an experiment or topology file
    │   ├── PlanError              the experiment does not fit the cluster, or does not multiply out
    │   ├── DataError              a prompt file, a model folder, a stored batch
    │   └── RunFolderError         a run folder that is missing, foreign, or held by another job
    ├── SchedulerError             Slurm refused or did not answer: exit code 4
    └── RunError                   a role, an engine or a collective failed while running: exit code 1
        ├── EngineError            an inference engine answered an error, or not at all
        ├── WeightPushError        an engine does not hold the weights that were pushed to it
        └── DeltaError             a version of the weights is damaged, or does not follow on the one that is held

Every error says what is wrong, where (file and key, or role and host), and what to change.
Programmer errors are assertions and never come from this tree.
"""

from __future__ import annotations


class SlimeError(Exception):
    """What went wrong, where, and what to change; `exit_code` is the command's."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields would be lost by the default: submitit pickles results and errors.
        return (_rebuild, (type(self), self.what, self.where, self.fix))

    @property
    def cause(self) -> str:
        """The error as one line, for `outcome.json` and the end of a log."""
        parts = [self.what]
        if self.where:
            parts.append(f"[{self.where}]")
        if self.fix:
            parts.append(f"-> {self.fix}")
        return " ".join(" ".join(parts).split())


def _rebuild(kind: type[SlimeError], what: str, where: str, fix: str) -> SlimeError:
    return kind(what, where=where, fix=fix)


class UserError(SlimeError):
    """The input is wrong; nothing was submitted and nothing was written."""

    exit_code = 2


class ConfigError(UserError):
    """An experiment or topology file does not say what it must."""


class PlanError(UserError):
    """The experiment does not fit the cluster, or its sizes do not multiply out."""


class DataError(UserError):
    """A prompt file, a model folder or a stored batch cannot be used."""


class RunFolderError(UserError):
    """A run folder is missing, is not one, or is held by another job."""


class SchedulerError(SlimeError):
    """Slurm refused a request or did not answer in time."""

    exit_code = 4


class RunError(SlimeError):
    """A role failed while the job was running."""


class EngineError(RunError):
    """An inference engine answered an error, or did not answer."""


class WeightPushError(RunError):
    """An engine does not hold the weights that were pushed to it."""


class DeltaError(RunError):
    """A version of the weights is damaged, or does not follow on the one that is held."""
