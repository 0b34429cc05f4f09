"""Prompts, demonstrations, and the source that hands them out. Knows nothing of tokens or engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One problem to answer."""

    content: str | list[dict[str, str]]
    """Plain text, or chat messages ({"role", "content"})."""
    answer: str = ""
    """Reference answer, for the reward."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The whole line or item, for the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A prompt with the answer to imitate."""

    prompt: str
    completion: str


class PromptSource(Protocol):
    """Hands out prompts in a fixed order and can go on from any point of it."""

    def take(self, count: int) -> list[tuple[int, Prompt]]:
        """The next prompts, each with its group id: 0, 1, 2 ... over the whole run, never used twice."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON values that describe the position."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a position that `state` described."""
        ...
