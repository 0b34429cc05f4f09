"""The controller's task: brings engines and trainer together, and makes one batch after another.

Synchronous mode: batch n is generated with the weights of step n - 1, and the next one waits until the trainer has pushed its own.
A batch that an earlier attempt sealed is served as it is; nothing is generated twice, no prompt is lost.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from slime_hpc.config.schema import Experiment
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, free_port, publish, write_atomic
from slime_hpc.data.prompt import Prompt, PromptSource
from slime_hpc.data.source import load_prompts, make_source
from slime_hpc.data.tokenize import Tokenizer, load_tokenizer
from slime_hpc.observe.summary import summarize
from slime_hpc.rollout.batch_maker import BatchMaker
from slime_hpc.rollout.control_server import ControlServer
from slime_hpc.rollout.evaluate import Evaluator
from slime_hpc.rollout.generate import Generator
from slime_hpc.rollout.reward import Scorer, make_scorer
from slime_hpc.rollout.rotation import Rotation
from slime_hpc.rollout.run_state import RunState
from slime_hpc.rollout.steps import StepLoop
from slime_hpc.store.journal import Journal

LINGER_S = 2.0
"""Time that the trainer has to read the answer to its last call before the server goes."""


def main(context: RoleContext) -> None:
    """Run the controller until the run is complete. Raises what made the run fail."""
    asyncio.run(_run(context))


async def _run(context: RoleContext) -> None:
    state = RunState(run=context.run)
    server = await _serve(context, state)
    try:
        await _control(context, state)
        await asyncio.sleep(LINGER_S)
    except BaseException as error:
        # Trainers that wait for a batch must learn of it at once.
        state.fail(error)
        await asyncio.sleep(LINGER_S)
        raise
    finally:
        await server.cleanup()


async def _serve(context: RoleContext, state: RunState) -> web.AppRunner:
    runner = web.AppRunner(ControlServer(state, token=context.token, attempt=context.attempt).app(), access_log=None)
    await runner.setup()
    port = free_port(context.address, context.port_first)
    await web.TCPSite(runner, context.address, port).start()
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    endpoint = Endpoint(role="controller", rank=0, host=context.address, port=port, node=node, pid=os.getpid())
    publish(context.run.endpoint(context.attempt, "controller"), endpoint)
    return runner


async def _control(context: RoleContext, state: RunState) -> None:
    experiment = context.experiment
    # Aside, for it imports and reads for seconds, in which the server must answer.
    tokenizer, source, heldout, scorer = await asyncio.to_thread(_load, experiment, context.role.cpus_per_task)
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            state.enter("waiting for engines", 0)
            rotation = Rotation(context, state, session)
            await rotation.bring_up()
            generator = Generator(rotation.route, context.token, experiment.rollout, session=session, on_idle=state.change)
            state.in_flight = lambda: generator.counts.in_flight
            maker = BatchMaker(experiment, tokenizer, source, generator, scorer)
            evaluator = Evaluator(experiment, tokenizer, heldout, generator, scorer)
            steps = StepLoop(context, state, source, Journal(context.run), maker, evaluator)
            await _first_of(steps.run(), rotation.watch())
    finally:
        scorer.close()
    state.enter("finished", experiment.steps)
    write_atomic(context.run.summary, json.dumps(summarize(context.run.path, context.run.metrics, context.run.batch_index)))


async def _first_of(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run them side by side until one ends, and raise what it raised; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _load(experiment: Experiment, workers: int) -> tuple[Tokenizer, PromptSource, list[Prompt], Scorer]:
    """Tokenizer, training prompts, held-out prompts, rewards. Raises ConfigError and DataError."""
    tokenizer = load_tokenizer(Path(experiment.model.path))
    source = make_source(experiment.data, experiment.seed)
    heldout = load_prompts(experiment.eval, key="eval") if experiment.eval else []
    return tokenizer, source, heldout, make_scorer(experiment.reward, workers=workers)
