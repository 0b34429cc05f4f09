import json
import re

import pytest

from slime_hpc import assets
from slime_hpc.config import names
from slime_hpc.config.load import load_experiment
from slime_hpc.data.source import load_prompts
from slime_hpc.plan.plan_job import check_prompt_files, plan_job
from slime_hpc.topology.load import load_topology

RECIPES = assets.available("recipes")


def site(cluster):
    """What a site asks of everyone, beside the recipe."""
    folder = f"{cluster.shared[0]}/runs" if cluster.shared else "/runs"
    return [f"slurm.account=project{cluster.scheduler.account_suffix}", "container.image=/images/slime-hpc.sif", f"runs={folder}"]


# config.json of SmolLM2-135M-Instruct, as far as a plan reads it; the weights are fetched by `recipes prepare`.
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip


@pytest.fixture
def load(tmp_path):
    """A recipe; where its model must be prepared first, with a folder that has that model's sizes and no weights."""

    def load(recipe, *settings):
        experiment = load_experiment([recipe], settings)
        if experiment.model.prepare is None:
            return experiment
        (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
        (tmp_path / "model.safetensors").touch()
        return load_experiment([recipe], [*settings, f"model.path={tmp_path}"])

    return load


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_named_as_its_file_and_says_what_it_is(recipe):
    assert load_experiment([recipe]).name == recipe
    assert assets.find("recipes", recipe, where="").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_a_recipe_names_exists(recipe):
    experiment = load_experiment([recipe])
    start = experiment.warm_start
    for reference in (experiment.data.source, experiment.eval.source, experiment.model.prepare, start and start.source):
        assert reference is None or callable(names.load(reference, where=recipe))
    check_prompt_files(experiment)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_plans_on_the_topology_it_names(load, recipe):
    experiment = load(recipe)
    plan = plan_job(experiment, load_topology(experiment.topology))
    assert plan.num_nodes == 1


@pytest.mark.parametrize("topology", assets.available("topologies"))
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_plans_on_every_topology(load, recipe, topology):
    cluster = load_topology(topology)
    shared = ["trainer.gpus_per_node=1", "rollout.colocate=true", "sync.transport=ipc"]
    apart = ["rollout.colocate=false", "sync.transport=distributed", "trainer.tokens_per_gpu=2048"]
    plan = plan_job(load(recipe, *site(cluster), *(shared if topology == "one-gpu" else apart)), cluster)
    assert plan.num_nodes == min(2, cluster.nodes)
    assert {role.kind for role in plan.roles} == {"controller", "router", "engines", "trainer"}


@pytest.mark.parametrize(
    ("settings", "data_parallel"),
    [(["trainer.nodes=2", "trainer.tensor_parallel=2"], 1), (["trainer.nodes=2"], 2)],
)
def test_the_demo_on_four_nodes(load, settings, data_parallel):
    """Two trainer ranks and two engines, each on a node of its own."""
    engines = "rollout.groups=[{engines=2, nodes=2}]"
    plan = plan_job(load("demo", engines, *settings), load_topology("test-cluster"))
    assert (plan.num_nodes, plan.data_parallel) == (4, data_parallel)
    assert [(role.kind, role.nodes, role.num_tasks) for role in plan.roles[2:]] == [("trainer", (0, 1), 2), ("engines", (2, 3), 2)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_held_out_problems_are_never_trained_on(recipe):
    experiment = load_experiment([recipe])
    train = {str(prompt.content) for prompt in load_prompts(experiment.data, key="data")}
    heldout = [str(prompt.content) for prompt in load_prompts(experiment.eval, key="eval")]
    assert len(set(heldout)) == len(heldout) >= 30
    assert not train & set(heldout)
    assert len(train) >= experiment.rollout.prompts_per_step


def test_the_demo_demonstrates_no_held_out_word():
    experiment = load_experiment(["demo"])
    demonstrations = names.load(experiment.warm_start.source, where="")(**experiment.warm_start.options)
    heldout = {prompt.content for prompt in load_prompts(experiment.eval, key="eval")}
    words = len({prompt.content for prompt in load_prompts(experiment.data, key="data")})
    assert not {demonstration.prompt for demonstration in demonstrations[:words]} & heldout
    assert len(demonstrations) >= experiment.warm_start.steps * experiment.warm_start.samples_per_step


def test_three_of_four_demonstrations_copy():
    demonstrations = names.load("slime_hpc.recipes.spell:demonstrations", where="")(copy_fraction=0.75, seed=0)
    some = demonstrations[:4000]
    copies = [d.completion == re.search(r"(\w+) $", d.prompt).group(1) for d in some]
    palindromes = sum(d.completion == d.completion[::-1] for d in some) / len(some)
    assert sum(copies) / len(copies) == pytest.approx(0.75 + 0.25 * palindromes, abs=0.03)
    assert all(d.completion in (word, word[::-1]) for d in some for word in [re.search(r"(\w+) $", d.prompt).group(1)])


def test_the_answers_are_right():
    for prompt in load_prompts(load_experiment(["demo"]).data, key="data"):
        assert prompt.answer == re.search(r"(\w+) $", prompt.content).group(1)[::-1]
    for prompt in load_prompts(load_experiment(["smollm2-arithmetic"]).data, key="data"):
        left, sign, right = prompt.content.splitlines()[-1].removesuffix(" =").split()
        assert int(prompt.answer) == int(left) + int(right) * {"+": 1, "-": -1}[sign]


def test_prompts_fit_the_context_that_the_demo_asks_for():
    from slime_hpc.data.tokenize import encode_demonstrations, encode_prompt, load_tokenizer

    experiment = load_experiment(["demo"])
    tokenizer = load_tokenizer(assets.folder("recipes") / "demo_model")
    for prompt in load_prompts(experiment.eval, key="eval"):
        tokens = encode_prompt(tokenizer, prompt, chat=experiment.data.chat)
        assert len(tokens) == 5 and tokenizer.unk_token_id not in tokens
        assert len(tokens) + experiment.rollout.max_tokens <= experiment.rollout.context_length
    demonstration = names.load(experiment.warm_start.source, where="")()[0]
    ((_, completion),) = encode_demonstrations(tokenizer, [demonstration])
    assert completion[-1] == tokenizer.eos_token_id and tokenizer.decode(completion[:-1]) == demonstration.completion


def test_the_demo_model_is_what_its_module_writes(tmp_path):
    from slime_hpc.recipes import demo_model

    demo_model.write(tmp_path)
    for path in (assets.folder("recipes") / "demo_model").iterdir():
        assert json.loads(path.read_text(encoding="utf-8")) == json.loads((tmp_path / path.name).read_text(encoding="utf-8")), path.name
