"""Copies between the regions of one pool, as storage asks for them."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Copier(Protocol):
    """Performs copies in order: each may read what one before it wrote, and overwrite its source.

    Ids are rows of the tensor; the caller has checked them. No copy goes onto itself.
    """

    @abstractmethod
    def copy_entries(self, memory: Tensor, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole rows of `memory` uint8 [ids, bytes]: (source, target) each."""

    @abstractmethod
    def copy_rows(self, rows: Tensor, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copies the first tokens of `rows` uint8 [ids, tensors, tokens, bytes]: (source, target, tokens)."""


class TorchCopier(Copier):
    """One call of torch's a copy."""

    def copy_entries(self, memory: Tensor, copies: Sequence[tuple[int, int]]) -> None:
        for source, target in copies:
            memory[target].copy_(memory[source])

    def copy_rows(self, rows: Tensor, copies: Sequence[tuple[int, int, int]]) -> None:
        for source, target, num_tokens in copies:
            rows[target, :, :num_tokens].copy_(rows[source, :, :num_tokens])
