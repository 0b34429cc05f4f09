"""Between Hugging Face folders and checkpoints (Megatron's torch_dist): `python tools/convert.py to-checkpoint MODEL OUT`, and back.

`python tools/convert.py to-hugging-face CHECKPOINT MODEL OUT` takes configuration and tokenizer from the folder MODEL. In one process, on
the CPU; a run's own checkpoints are exported by `slime-hpc export`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import Progress

from slime_hpc.config.schema import Experiment
from slime_hpc.errors import SlimeError


def main() -> None:
    """Convert one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of the checkpoint's weights")
    parser.add_argument("--file-mib", type=int, default=5120, help="size of a weight file")
    directions = parser.add_subparsers(dest="direction", required=True)
    forth, back = directions.add_parser("to-checkpoint"), directions.add_parser("to-hugging-face")
    back.add_argument("checkpoint", type=Path)
    for direction in (forth, back):
        direction.add_argument("model", type=Path)
        direction.add_argument("out", type=Path)
    given = parser.parse_args()
    model = {"path": str(given.model), "dtype": given.dtype}
    experiment = Experiment.model_validate({"name": "convert", "model": model, "data": {"source": "none:none"}})
    try:
        _convert(given, experiment)
    except SlimeError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _convert(given: argparse.Namespace, experiment: Experiment) -> None:
    from slime_hpc.trainer.export import from_hugging_face, to_hugging_face

    if given.direction == "to-checkpoint":
        from_hugging_face(experiment, given.out)
        return
    with Progress() as bar:
        task = bar.add_task(given.out.name, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        to_hugging_face(given.checkpoint, experiment, given.out, progress=show, file_mib=given.file_mib)


if __name__ == "__main__":
    main()
