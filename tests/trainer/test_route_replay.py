"""R3 (Ma et al. 2025): a bfloat16 SGLang engine tells where it sent each token, and the float32 trainer sends it there too.

Rounding makes the two choose other experts for some tokens; that part of the log-probs' difference goes away with the replay.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import requests as http

from slime_hpc.config.schema import Rollout
from slime_hpc.data.collate import collate
from slime_hpc.data.sample import Sample
from slime_hpc.rollout.generate import Answer, Generator, Request
from slime_hpc.store import hdf5
from slime_hpc.testing import engines
from tests.trainer.tiny import TEMPERATURE

pytestmark = pytest.mark.slow
LAYERS, EXPERTS_PER_TOKEN = 2, 2


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Request], list[Answer]]:
    folder = tmp_path_factory.mktemp("replay")
    model = engines.make_tiny_model(folder / "model", family="qwen3_moe")
    run = engines.make_run(folder / "run")
    requests = [
        Request(
            group=i // 4, index=i % 4, prompt_tokens=[5 + i // 4, 40, 60 + i], temperature=TEMPERATURE, max_tokens=24, seed=i,
            experts=(LAYERS, EXPERTS_PER_TOKEN),
        )
        for i in range(32)
    ]  # fmt: skip
    with engines.start_engine(run, model, sglang={"dtype": "bfloat16"}, algorithm={"route_replay": True}) as endpoint:
        token = run.token.read_text()
        # An answer names the version of its weights: give them one.
        body = {"model_path": str(model), "weight_version": "0"}
        headers = {"Authorization": f"Bearer {token}"}
        assert http.post(f"{endpoint.url}/update_weights_from_disk", json=body, headers=headers, timeout=60).json()["success"]
        answers = asyncio.run(_ask(endpoint.url, token, requests))
    return folder, requests, answers


async def _ask(url: str, token: str, requests: list[Request]) -> list[Answer]:
    async def route() -> str:
        return url

    async with aiohttp.ClientSession() as session:
        return await Generator(route, token, Rollout(), session=session).generate(requests)


@pytest.fixture(scope="module")
def values(generated: tuple[Path, list[Request], list[Answer]]) -> dict[str, Any]:
    folder, requests, answers = generated
    batch, figures = folder / "batch.h5", folder / "figures.json"
    hdf5.seal(batch, collate([_sample(r, a) for r, a in zip(requests, answers, strict=True)], step=1, weight_version=0))
    command = [sys.executable, "-m", "tests.trainer.replay", str(folder / "model"), str(batch), str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(figures.read_text())
    return told


def _sample(request: Request, answer: Answer) -> Sample:
    return Sample(
        group=request.group, index=request.index, prompt_tokens_P=np.array(request.prompt_tokens, np.int32),
        response_tokens_R=np.array(answer.tokens, np.int32), logprobs_R=np.array(answer.logprobs, np.float32),
        loss_mask_R=np.ones(len(answer.tokens), np.uint8), reward=float(request.index), reward_failed=False, finish=answer.finish,
        weight_version=0, weight_version_last=0, text=answer.text, routes_TLK=answer.routes_TLK,
    )  # fmt: skip


def test_the_engine_tells_the_experts_of_every_token_it_ran(generated: tuple[Path, list[Request], list[Answer]]) -> None:
    _, requests, answers = generated
    for request, answer in zip(requests, answers, strict=True):
        assert answer.routes_TLK is not None
        assert answer.routes_TLK.shape == (len(request.prompt_tokens) + len(answer.tokens) - 1, LAYERS, EXPERTS_PER_TOKEN)
        assert answer.routes_TLK.min() >= 0
        assert (answer.routes_TLK[..., 0] != answer.routes_TLK[..., 1]).all()


def test_with_the_engines_routes_the_log_probs_come_nearer_to_the_engines(values: dict[str, Any]) -> None:
    replayed, free = values["replayed"], values["free"]
    assert replayed["logprob_abs_diff_mean_unrouted"] == pytest.approx(free["logprob_abs_diff_mean"], rel=1e-5)
    assert 0 < replayed["logprob_abs_diff_mean"] < 0.7 * free["logprob_abs_diff_mean"]
    assert replayed["mismatch_k3"] < 0.2 * free["mismatch_k3"]


def test_training_under_replay_updates_the_weights_from_finite_gradients(values: dict[str, Any]) -> None:
    assert values["replayed"]["skipped_updates"] == 0
    assert values["replayed"]["grad_norm"] > 0


def test_the_reference_chooses_its_own_experts(values: dict[str, Any]) -> None:
    """Before the first update the policy is the reference, but for the experts that it was sent to."""
    assert values["free"]["kl"] == pytest.approx(0, abs=1e-9)
    assert values["replayed"]["kl"] > 1e-6
