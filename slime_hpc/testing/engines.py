"""Real SGLang engines on the CPU, and tiny models for them: for tests of whatever talks to an engine.

Heavy: a start takes some ten seconds and about 2 GB. Start once, and push weights as often as needed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from slime_hpc.config.schema import Experiment
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint, free_port
from slime_hpc.plan.job import JobPlan, RolePlan
from slime_hpc.rollout.engine import endpoint_of, environment, write_settings
from slime_hpc.rollout.process import ServerProcess
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.schema import Topology

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe"]
_HEALTH_TIMEOUT_S = 240.0


def make_tiny_model(folder: Path, *, family: Family = "qwen3", seed: int = 0, tied: bool = False) -> Path:
    """Write a random fp32 model of about 115,000 parameters (2 layers, hidden 64, vocabulary 320) with a byte-level tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 3,
    }  # fmt: skip
    head = {} if family == "qwen2" else {"head_dim": 16}
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    own = experts if family == "qwen3_moe" else {}
    config = AutoConfig.for_model(family, tie_word_embeddings=tied, **sizes, **head, **own)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        # Larger than a usual initialisation, so that the model is far from uniform and an error in the weights shows.
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3.0)
            elif parameter.dim() == 3:
                # Experts; as much as to show which of them a token went to.
                parameter.mul_(10.0)
    model.save_pretrained(folder)
    _tiny_tokenizer().save_pretrained(folder)
    return folder


def _tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the answer is 42 because 6 times 7 is 42", "what is 3 plus 4? 3 plus 4 is 7."] * 20, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        bos_token="<|endoftext|>",
        pad_token="<pad>",
        model_max_length=512,
        chat_template="{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    )


def make_run(folder: Path) -> RunFolder:
    """A run folder that holds nothing but a token."""
    run = RunFolder(folder)
    run.control.mkdir(parents=True, mode=0o700, exist_ok=True)
    run.token.touch(mode=0o600)
    run.token.write_text(secrets.token_urlsafe(32), encoding="ascii")
    return run


def make_context(run: RunFolder, role: RolePlan, *, rank: int = 0, address: str = "127.0.0.1", **experiment: Any) -> RoleContext:
    """The context of one task of a job on this machine; `experiment` holds top-level tables of the experiment file."""
    value = {"name": "test", "data": {"prompts": "prompts.jsonl"}, **experiment}
    node = {"gpus": 4, "cpus": os.cpu_count() or 1, "memory_gib": 16}
    scheduler = {"kind": "local"}
    topology = Topology.model_validate({"name": "here", "accelerator": "cpu", "scheduler": scheduler, "nodes": 1, "node": node})
    plan = JobPlan(name="test", scheduler="local", accelerator="cpu", num_nodes=1, roles=(role,))
    return RoleContext(
        run=run,
        experiment=Experiment.model_validate(value),
        topology=topology,
        plan=plan,
        role=role,
        attempt=0,
        rank=rank,
        local_rank=rank,
        address=address,
    )


def make_role(name: str, kind: Literal["controller", "router", "engines", "trainer"], *, tasks: int = 1, port_first: int = 0) -> RolePlan:
    """A role on this machine; ports from a random place on unless given, so that tests can run side by side."""
    return RolePlan(
        name=name,
        kind=kind,
        nodes=(0,),
        tasks_per_node=tasks,
        gpus_per_node=tasks,
        gpu_first=0,
        cpus_per_task=1,
        memory_gib=4,
        port_first=port_first or 21_000 + secrets.randbelow(300) * 32,
    )


@contextlib.contextmanager
def start_engine(
    run: RunFolder, model: Path, *, name: str = "engines", tensor_parallel: int = 1, sglang: dict[str, Any] | None = None, **experiment: Any
) -> Iterator[Endpoint]:
    """A running engine of the role `name`, ready for requests, with the run's token; killed at the end."""
    with launch_engine(run, model, name=name, tensor_parallel=tensor_parallel, sglang=sglang, **experiment) as (endpoint, server):
        wait_ready(endpoint, server)
        yield endpoint


@contextlib.contextmanager
def launch_engine(
    run: RunFolder, model: Path, *, name: str = "engines", tensor_parallel: int = 1, sglang: dict[str, Any] | None = None, **experiment: Any
) -> Iterator[tuple[Endpoint, ServerProcess]]:
    """An engine that is starting: `wait_ready` says when it takes requests, so that several can start side by side."""
    rollout = {
        "groups": [{"gpus_per_engine": tensor_parallel}],
        "context_length": 512,
        "sglang": {"max_total_tokens": 8192} | (sglang or {}),
    }
    tables: dict[str, Any] = {"model": {"path": str(model), "dtype": "float32"}, "rollout": rollout} | experiment
    context = make_context(run, make_role(name, "engines"), **tables)
    port = free_port(context.address, context.port_first)
    endpoint = endpoint_of(context, port)
    settings = write_settings(context, endpoint, free_port(context.address, port + 1))
    command = [sys.executable, "-m", "slime_hpc.rollout.sglang_server", str(settings)]
    with ServerProcess(endpoint.role, command, environment(context)) as server:
        yield endpoint, server


def wait_ready(endpoint: Endpoint, server: ServerProcess) -> None:
    """Wait until an engine takes requests."""
    server.wait_healthy(f"{endpoint.url}/health", timeout_s=_HEALTH_TIMEOUT_S)
