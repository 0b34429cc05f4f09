"""The policy's model with Megatron's schedule around it: log-probs of micro-batches, and gradients of a loss over them.

Knows how micro-batches flow through the pipeline stages; knows no algorithm and no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

from slime_hpc.data.collate import offsets
from slime_hpc.trainer import routes
from slime_hpc.trainer.microbatch import MicroBatch, pack
from slime_hpc.trainer.model import PolicyModel
from slime_hpc.trainer.parallel import Place

Loss = Callable[..., torch.Tensor]
"""(micro-batch, each row of the model's output) -> this micro-batch's part of the update's loss: parts of all ranks add up to it.

The rows of a policy are logprob_R and entropy_R.
"""


class Policy:
    """One rank's stage of the policy; every method is called on all ranks together."""

    def __init__(self, model: PolicyModel, config: TransformerConfig, place: Place, *, trainable: bool = True) -> None:
        self.model = model
        self.config = config
        self._place = place
        self._multiple = config.tensor_model_parallel_size if config.sequence_parallel else 1
        module = Float16Module(config, model) if config.bf16 else model
        if not trainable:
            self.module: Any = module.requires_grad_(False)
            return
        ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
        self.module = DistributedDataParallel(config, ddp, module)
        config.finalize_model_grads_func = finalize_model_grads
        config.no_sync_func = self.module.no_sync

    def pack(self, arrays: Any, samples: Sequence[int]) -> MicroBatch:
        """A micro-batch of some rows of `arrays`, which has tokens_T, token_offsets and response_offsets."""
        return pack(
            arrays.tokens_T,
            arrays.token_offsets,
            arrays.response_offsets,
            samples,
            multiple=self._multiple,
            device=self._place.device,
            rank=self._place.cp_rank,
            ranks=self.config.context_parallel_size,
        )

    def logprobs(self, batches: Sequence[MicroBatch], *, temperature: float) -> list[torch.Tensor]:
        """logprob_R of each micro-batch; on all stages but the last an empty list."""
        return self.first_rows(batches, temperature=temperature)

    @torch.no_grad()
    def first_rows(self, batches: Sequence[MicroBatch], *, temperature: float) -> list[torch.Tensor]:
        """The first row, (R,), of the model's output for each micro-batch; on all stages but the last an empty list."""

        def collect(output: torch.Tensor, non_loss_data: bool = False) -> torch.Tensor:
            return output[0]

        values: list[torch.Tensor] = self._run(batches, temperature, lambda batch: collect, forward_only=True)
        return values

    def backward(self, batches: Sequence[MicroBatch], loss: Loss, *, temperature: float) -> float:
        """Gradients of the loss over all ranks' micro-batches, of which all have the same number; the last stage returns its own part."""
        # Megatron divides by the micro-batches, and its gradients are means over data-parallel ranks: we want plain sums. Context-parallel
        # ranks each hold the whole loss, and the gradient of their own tokens; Megatron multiplies by their number itself.
        scale = len(batches) * self._place.dp_size

        def with_batch(batch: MicroBatch) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
            def scaled(output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                part = loss(batch, *output)
                return part * scale, part.detach().clone()

            return scaled

        self.module.zero_grad_buffer()
        parts: list[torch.Tensor] = self._run(batches, temperature, with_batch, forward_only=False)
        return float(torch.stack(parts).sum()) if parts else 0.0

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        """Log-prob (temperature 1) of every token but the first, on all ranks."""
        sizes = [len(sequence) - 1 for sequence in sequences]
        result = torch.empty(sum(sizes), dtype=torch.float32, device=self._place.device)
        batch = self.pack(_Sequences.of(sequences), range(len(sequences)))
        values = self.logprobs([batch], temperature=1.0)
        if values:
            result.copy_(values[0])
        if self._place.world > 1:
            dist.broadcast(result, src=self._place.last_source)
        return [part.tolist() for part in result.split(sizes)]

    def _run(self, batches: Sequence[MicroBatch], temperature: float, reduce: Callable[[MicroBatch], Any], *, forward_only: bool) -> Any:
        def forward_step(iterator: Iterator[MicroBatch], model: Any) -> tuple[torch.Tensor, Any]:
            batch = next(iterator)
            return model(batch, temperature=temperature), reduce(batch)

        with routes.replaying(batches):
            return self._scheduled(forward_step, batches, forward_only=forward_only)

    def _scheduled(self, forward_step: Callable[..., Any], batches: Sequence[MicroBatch], *, forward_only: bool) -> Any:
        longest = max(batch.tokens_T.numel() for batch in batches)
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=[self.module],
            num_microbatches=len(batches),
            seq_length=longest,
            decoder_seq_length=longest,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Sequences in the layout of a batch: all tokens but each first one count as response."""

    tokens_T: npt.NDArray[np.int32]
    token_offsets: npt.NDArray[np.int64]
    response_offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, sequences: list[list[int]]) -> _Sequences:
        lengths = [len(sequence) for sequence in sequences]
        tokens = np.array([token for sequence in sequences for token in sequence], np.int32)
        return cls(tokens, offsets(lengths), offsets(length - 1 for length in lengths))
