"""Plays the first `replan_steps` actions of each chunk, then asks for a new one."""

import numpy as np
from jaxtyping import Float


class ChunkPlayer:
    """Hands out a chunk's first `replan_steps` actions one by one, as openpi's clients do."""

    def __init__(self, replan_steps: int) -> None:
        """Start empty: the first step needs a query. `replan_steps` is at least 1."""
        if replan_steps < 1:
            raise ValueError(f"replan_steps is {replan_steps}, expected at least 1")
        self._replan_steps = replan_steps
        self._chunk: Float[np.ndarray, "n d"] | None = None
        self._next = 0

    @property
    def needs_query(self) -> bool:
        """Whether the next action must come from a new chunk."""
        return self._chunk is None or self._next == len(self._chunk)

    def load(self, chunk: Float[np.ndarray, "h d"]) -> None:
        """Take a new chunk of h >= replan_steps actions; later ones are never played."""
        if not self.needs_query:
            raise ValueError("a chunk was loaded while the last one still had actions to play")
        if len(chunk) < self._replan_steps:
            raise ValueError(
                f"a chunk of {len(chunk)} is shorter than replan_steps {self._replan_steps}"
            )
        self._chunk = chunk[: self._replan_steps]
        self._next = 0

    def next_action(self) -> Float[np.ndarray, " d"]:
        """The next action, shape (d,)."""
        if self._chunk is None or self.needs_query:
            raise ValueError("no action left: load a chunk first")
        action = self._chunk[self._next]
        self._next += 1
        return action
