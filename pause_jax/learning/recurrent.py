"""A small model of characters."""

from __future__ import annotations

from typing import Any, ClassVar

import flax.linen as nn
from jax import Array

from pause_jax.base.struct import static
from pause_jax.learning.models import Model


class _Gru(nn.Module):
    embedding: int
    hidden: int
    num_outputs: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        vectors = nn.Embed(self.num_outputs, self.embedding, name="embedding")(x)
        states: Any = nn.RNN(nn.GRUCell(self.hidden), name="gru")(vectors)
        return nn.Dense(self.num_outputs, name="output")(states)


class Gru(Model):
    """Embedding, a gated recurrent unit, an affine layer: tokens [B, L] to outputs [B, L, V].

    Attributes:
      embedding: entries of a token's vector.
      hidden: entries of the state.
    """

    name: ClassVar[str] = "gru"
    summary: ClassVar[str] = "a gated recurrent unit, for tokens"
    takes_tokens: ClassVar[bool] = True

    embedding: int = static(default=16, at_least=1)
    hidden: int = static(default=64, at_least=1)

    def module(self, num_outputs: int) -> nn.Module:
        return _Gru(self.embedding, self.hidden, num_outputs)
