"""TRL's GRPOTrainer on the same model, prompts, group size, lengths and threads, as the peer of `step.py`.

`step.py` runs it as a process of its own, with its settings as one JSON argument; its last line is one JSON object with the
seconds and the response tokens of each step.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    """Train for some steps and print what each took."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    import pyarrow
    import torch
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(settings["threads"])
    seconds: list[float] = []
    tokens: list[int] = []
    answers = dict(zip(settings["prompts"], settings["answers"], strict=True))

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds[-1] = time.perf_counter() - seconds[-1]

    def reward(prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens.append(sum(len(ids) for ids in completion_ids))
        return [float(text.strip().split("\n")[0].strip() == answers[prompt]) for prompt, text in zip(prompts, completions, strict=True)]

    config = GRPOConfig(
        output_dir=settings["folder"],
        per_device_train_batch_size=settings["prompts_per_step"] * settings["samples_per_prompt"],
        num_generations=settings["samples_per_prompt"],
        max_completion_length=settings["max_tokens"],
        max_steps=settings["steps"],
        learning_rate=settings["lr"],
        beta=0.0,
        loss_type="grpo",
        temperature=1.0,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
        seed=settings["seed"],
    )
    # A fingerprint of our own: hashing the dataset fails with some pairs of dill and pyarrow.
    dataset = Dataset(InMemoryTable(pyarrow.table({"prompt": settings["prompts"]})), fingerprint="prompts")
    trainer = GRPOTrainer(
        model=settings["model"],
        args=config,
        processing_class=AutoTokenizer.from_pretrained(settings["model"], padding_side="left"),
        reward_funcs=reward,
        train_dataset=dataset,
        callbacks=[Clock()],
    )
    trainer.train()
    print(json.dumps({"seconds": seconds, "response_tokens": tokens}))


if __name__ == "__main__":
    main()
