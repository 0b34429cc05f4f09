"""One batch from prompts, with a generator that knows what it is asked, and real rewards."""

import asyncio

import numpy as np
import pytest

from slime_hpc.config.schema import Experiment
from slime_hpc.data.prompt import Prompt
from slime_hpc.data.sample import Finish
from slime_hpc.data.source import EpochSource
from slime_hpc.rollout.batch_maker import BatchMaker
from slime_hpc.rollout.evaluate import Evaluator
from slime_hpc.rollout.generate import Answer, Counts, sample_seed
from slime_hpc.rollout.reward import make_scorer


class Generator:
    """Answers with the prompt's own text for even seeds, else with an 'x'; keeps the requests."""

    def __init__(self):
        self.counts = Counts()
        self.requests = []

    async def generate(self, requests):
        self.requests += requests
        self.counts.retries += 2
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = "".join(map(chr, request.prompt_tokens)) if request.seed % 2 == 0 else "x"
        length = 1 + request.seed % request.max_tokens
        finish = Finish.LENGTH if length == request.max_tokens else Finish.STOP
        tokens = [request.seed % 97 + i for i in range(length)]
        return Answer(tokens=tokens, logprobs=[-0.25] * length, finish=finish, weight_version=6, weight_version_last=6, text=text)


def tokenizer(text, add_special_tokens):
    return {"input_ids": [ord(letter) for letter in text]}


def experiment(**tables):
    value = {"rollout": {"prompts_per_step": 3, "samples_per_prompt": 4, "max_tokens": 5}, "reward": {"kind": "exact"}}
    return Experiment.model_validate({"name": "x", "seed": 9, "model": {"path": "m"}, "data": {"prompts": "p"}, **value, **tables})


@pytest.fixture
def parts():
    scorers = []

    def parts(config):
        prompts = [Prompt(content=text, answer=text) for text in ("ab", "cde", "f", "ghij", "k")]
        source = EpochSource(prompts, seed=config.seed, shuffle=False)
        generator = Generator()
        scorers.append(make_scorer(config.reward, workers=1))
        return source, generator, scorers[-1], prompts

    yield parts
    for scorer in scorers:
        scorer.close()


@pytest.fixture
def made(parts):
    def make(config):
        source, generator, scorer, _ = parts(config)
        maker = BatchMaker(config, tokenizer, source, generator, scorer)
        return asyncio.run(maker.make(7, 6)), generator

    return make


def test_a_batch_holds_each_groups_answers_side_by_side(made):
    value, generator = made(experiment())
    batch = value.batch
    assert (batch.step, batch.weight_version) == (7, 6)
    assert batch.group_N.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert batch.index_N.tolist() == [0, 1, 2, 3] * 3
    for i, request in enumerate(generator.requests):
        answer = generator.answer(request)
        tokens = batch.tokens_T[batch.token_offsets[i] : batch.token_offsets[i + 1]]
        assert tokens.tolist() == [*request.prompt_tokens, *answer.tokens]
        assert batch.response_lengths_N[i] == len(answer.tokens)
        assert batch.reward_N[i] == (request.seed % 2 == 0)
        assert request.seed == sample_seed(9, int(batch.group_N[i]), int(batch.index_N[i]))


def test_the_numbers_of_the_event_are_those_of_the_batch(made):
    value, _ = made(experiment())
    rewards = value.batch.reward_N.reshape(3, 4)
    metrics = value.metrics
    assert metrics["samples"] == 12
    assert metrics["reward_mean"] == pytest.approx(rewards.mean())
    assert metrics["groups_with_spread"] == sum(len(set(group)) > 1 for group in rewards.tolist())
    assert metrics["response_tokens"] == len(value.batch.logprobs_R)
    assert metrics["truncated"] == int((value.batch.finish_N == Finish.LENGTH).sum())
    assert (metrics["staleness"], metrics["retries"], metrics["reward_failed"]) == (0, 2, 0)


def test_a_seed_repeats_a_batch_and_another_does_not(made):
    one, again, other = (made(experiment(seed=seed))[0].batch for seed in (9, 9, 10))
    assert np.array_equal(one.tokens_T, again.tokens_T)
    assert not np.array_equal(one.tokens_T, other.tokens_T)


def test_a_reward_that_raises_marks_its_samples_and_the_batch_is_whole(made):
    failing = {"kind": "odd_rewards:score", "timeout_s": 20}
    value, _ = made(experiment(reward=failing))
    assert value.batch.reward_failed_N.all()
    assert not value.batch.reward_N.any()
    assert value.metrics["reward_failed"] == value.batch.num_samples == 12


@pytest.mark.parametrize(("interval", "due"), [(0, [0, 10]), (4, [0, 4, 8, 10])])
def test_an_evaluation_is_due_before_after_and_between(parts, interval, due):
    config = experiment(steps=10, eval={"prompts": "p", "interval": interval})
    _, generator, scorer, prompts = parts(config)
    evaluator = Evaluator(config, tokenizer, prompts, generator, scorer)
    assert [step for step in range(11) if evaluator.due(step)] == due


def test_an_evaluation_asks_each_problem_once_and_as_it_is_told(parts):
    config = experiment(eval={"prompts": "p", "temperature": 0.0})
    _, generator, scorer, prompts = parts(config)
    result = asyncio.run(Evaluator(config, tokenizer, prompts, generator, scorer).evaluate())
    assert [request.temperature for request in generator.requests] == [0.0] * len(prompts)
    right = [request.seed % 2 == 0 for request in generator.requests]
    assert result["pass_rate"] == sum(right) / len(right)
    assert result["problems"] == len(prompts)
    training = {sample_seed(config.seed, group, index) for group in range(50) for index in range(8)}
    assert not training & {request.seed for request in generator.requests}


def test_without_an_eval_table_none_is_due(parts):
    config = experiment()
    _, generator, scorer, _ = parts(config)
    assert not Evaluator(config, tokenizer, [], generator, scorer).due(0)
