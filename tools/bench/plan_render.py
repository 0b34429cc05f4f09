"""Milliseconds from an experiment and a topology to a plan and its script, and the script's size, from 2 to 4,096 nodes.

Loading the two files is not counted: it does not depend on the nodes. The first plan of a process also compiles the template.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from slime_hpc.config.load import load_experiment
from slime_hpc.plan.plan_job import plan_job
from slime_hpc.render.sbatch import render_sbatch
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.load import load_topology

GOAL_MS = 10.0
MOST = 4096


def measure(nodes: int, rounds: int) -> tuple[dict[str, Any], str]:
    """Figures, and the script; half of the nodes train, half run one engine for each GPU."""
    topology = load_topology("h100-pyxis").model_copy(update={"nodes": nodes})
    gpus = topology.node.gpus
    settings = [
        "container.image=/images/slime-hpc.sqsh",
        "warm_start=",
        f"trainer.nodes={nodes // 2}",
        f"rollout.prompts_per_step={nodes // 2 * gpus}",
        f"rollout.groups=[{{engines={nodes // 2 * gpus}}}]",
    ]
    experiment = load_experiment(["demo"], settings)
    run = RunFolder(Path("/scratch/runs/demo/20300101-000000-abcd"))
    milliseconds, script = [], ""
    for _ in range(rounds):
        start = time.perf_counter()
        plan = plan_job(experiment, topology)
        script = render_sbatch(plan, experiment, topology, run=run, python="/opt/venv/bin/python")
        milliseconds.append(1e3 * (time.perf_counter() - start))
    warm = milliseconds[1:]
    return {
        "nodes": plan.num_nodes,
        "steps": len(plan.roles),
        "bytes": len(script.encode()),
        "lines": script.count("\n"),
        "ms_first": milliseconds[0],
        "ms_median": statistics.median(warm),
        "ms_min": min(warm),
    }, script


def without_numbers(script: str) -> list[str]:
    """Its lines, with a # for each number and each list of numbered nodes."""
    return re.sub(r"'?--nodelist=\S+|\d+", "#", script).splitlines()


def report(rows: list[dict[str, Any]], smallest: str, largest: str) -> dict[str, Any]:
    """The best of many rounds is what the code costs; the median also counts what else the machine does."""
    few, many = rows[0], rows[-1]
    changed = sum(a != b for a, b in zip(without_numbers(smallest), without_numbers(largest), strict=True))
    values = [
        (f"plan + render for {many['nodes']} nodes, ms (best)", round(many["ms_min"], 2), GOAL_MS),
        (f"lines more than for {few['nodes']} nodes", many["lines"] - few["lines"], 0),
        ("lines that differ in more than their numbers", changed, 0),
        ("srun steps more", many["steps"] - few["steps"], 0),
    ]
    targets = [{"name": name, "value": value, "goal": goal, "met": value <= goal} for name, value, goal in values]
    return {"bench": "plan_render", "targets": targets, "rows": rows, "cores": os.cpu_count(), "load": os.getloadavg()[0]}


def main() -> None:
    """Run, print a table, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, and the smallest and the largest number of nodes alone")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Recipes resolve `runs` against the working directory, which may be anything.
        os.chdir(folder)
        sizes = (2, MOST) if options.quick else (2, 16, 128, 1024, MOST)
        measured = [measure(nodes, 6 if options.quick else 51) for nodes in sizes]
    rows, scripts = [row for row, _ in measured], [script for _, script in measured]
    if not options.json:
        print(f"{'nodes':>6}  {'steps':>5}  {'bytes':>6}  {'first ms':>8}  {'median ms':>9}  {'best ms':>8}")
        for row in rows:
            times = f"{row['ms_first']:8.2f}  {row['ms_median']:9.2f}  {row['ms_min']:8.2f}"
            print(f"{row['nodes']:6}  {row['steps']:5}  {row['bytes']:6}  {times}")
    print(json.dumps(report(rows, scripts[0], scripts[-1])))


if __name__ == "__main__":
    main()
