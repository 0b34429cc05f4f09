"""What every weight transport must do: a suite of tests to inherit, run against real engines.

A subclass gives two fixtures: `transport` (a fresh transport, closed afterwards) and `rig` (what the engines hold at first is anything).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import torch

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.sync.transport import WeightTransport
from slime_hpc.sync.verify import verify

TOLERANCE = 1e-5
_PROMPT = list(range(10, 40))


@dataclass(frozen=True, slots=True)
class Rig:
    """Running engines, and the Hugging Face model (fp32) whose weights are pushed to them."""

    engines: Sequence[Endpoint]
    token: str
    model: Any
    vocab_size: int

    def tensors(self, scale: float = 1.0) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's tensors, matrices multiplied by `scale`."""
        for name, tensor in self.model.state_dict().items():
            yield name, tensor * scale if tensor.dim() == 2 else tensor

    def load(self, scale: float) -> None:
        """Give the model itself the tensors that `tensors(scale)` gives."""
        self.model.load_state_dict(dict(self.tensors(scale)))

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        """Log-prob of every token but the first, by the Hugging Face model."""
        scores = []
        for sequence in sequences:
            with torch.no_grad():
                logprobs_TV = self.model(torch.tensor([sequence])).logits[0].log_softmax(-1)
            scores.append([float(logprobs_TV[i, token]) for i, token in enumerate(sequence[1:])])
        return scores

    def difference(self, version: int) -> float:
        """`verify` of all engines against the model."""
        return verify(self.engines, self.token, version=version, vocab_size=self.vocab_size, score=self.score, tolerance=TOLERANCE)

    def ask(self, engine: Endpoint, **sampling: Any) -> dict[str, Any]:
        """One answer of one engine to a fixed prompt."""
        body = {"input_ids": _PROMPT, "return_logprob": True, "sampling_params": {"max_new_tokens": 8, "ignore_eos": True, **sampling}}
        reply = requests.post(f"{engine.url}/generate", json=body, headers={"Authorization": f"Bearer {self.token}"}, timeout=60)
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
        return answer


class TransportContract:
    """Inherit, and give `transport` and `rig`."""

    def test_engines_hold_what_was_pushed(self, transport: WeightTransport, rig: Rig) -> None:
        """After a push every engine computes what the model computes, under the new version."""
        transport.connect(rig.engines)
        report = transport.push(11, rig.tensors())
        assert rig.difference(11) <= TOLERANCE
        assert report.version == 11
        assert report.num_bytes == sum(tensor.nbytes for _, tensor in rig.tensors())
        phases = (report.gather_s, report.convert_s, report.wire_s, report.load_s, report.pause_s)
        assert all(0 <= seconds <= report.total_s for seconds in phases)
        assert report.num_calls >= len(rig.engines)

    def test_a_second_push_leaves_nothing_of_the_first(self, transport: WeightTransport, rig: Rig) -> None:
        """Neither weights nor cached prefixes of the old version serve the new one."""
        transport.connect(rig.engines)
        transport.push(21, rig.tensors())
        before = [rig.ask(engine, temperature=0.0) for engine in rig.engines]
        transport.push(22, rig.tensors(1.05))
        after = [rig.ask(engine, temperature=0.0) for engine in rig.engines]
        for old, new in zip(before, after, strict=True):
            assert old["meta_info"]["weight_version"] == "21"
            assert new["meta_info"]["weight_version"] == "22"
            assert new["meta_info"]["cached_tokens"] == 0
            assert old["meta_info"]["output_token_logprobs"] != new["meta_info"]["output_token_logprobs"]
        rig.load(1.05)
        assert rig.difference(22) <= TOLERANCE

    def test_verify_tells_another_version(self, transport: WeightTransport, rig: Rig) -> None:
        """An engine that says another version is named."""
        transport.connect(rig.engines)
        transport.push(31, rig.tensors())
        with pytest.raises(WeightPushError, match=f"{rig.engines[0].role} holds weight version '31', not '32'"):
            rig.difference(32)

    def test_verify_tells_other_weights(self, transport: WeightTransport, rig: Rig) -> None:
        """An engine whose weights differ is named, with both numbers."""
        transport.connect(rig.engines)
        transport.push(41, rig.tensors(1.01))
        with pytest.raises(WeightPushError, match="does not hold the trainer's weights"):
            rig.difference(41)

    def test_push_needs_connect(self, transport: WeightTransport, rig: Rig) -> None:
        """Without engines there is a clean error, and the iterable is still run through."""
        tensors = iter(list(rig.tensors()))
        with pytest.raises(WeightPushError, match="connect"):
            transport.push(1, tensors)
        assert next(tensors, None) is None

    def test_close_is_safe_at_any_time(self, transport: WeightTransport, rig: Rig) -> None:
        """Before connect, twice, and followed by a new connect."""
        transport.close()
        transport.connect(rig.engines)
        transport.close()
        transport.close()
        transport.connect(rig.engines)
        transport.push(51, rig.tensors())
        assert rig.difference(51) <= TOLERANCE
