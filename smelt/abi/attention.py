"""The signatures of attention kernels: what each takes, in order, and how it stores the logsumexp of each row.

The primitives with their metadata and references, the calls of decompositions and the bindings of kernels are all made
from these.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

TENSORS = frozenset(("grad", "q", "k", "v", "bias", "seed", "out"))
"""Operands that are tensors or None. So is `sums` of a backward; that of a forward says whether somebody wants it."""

PADDED_ROWS = 32
"""A logsumexp that is padded has a multiple of so many rows."""


class Sums(enum.Enum):
    """The logsumexp of each row as a kernel stores it."""

    ROWS = "(batch, heads, rows)"
    PADDED = "(batch, heads, padded rows); without rows where nobody wants it"
    COLUMN = "(batch, heads, rows, 1); without elements where nobody wants it"
    BY_ROW = "(batch, heads, rows), all heads of a row together in memory; of float64 in float64"


class Fourth(enum.Enum):
    """What a backward gives besides the gradients by q, k and v."""

    NOTHING = "nothing"
    BIAS = "the gradient by the bias"
    SCORES = "the gradient by each score"


@dataclass(frozen=True)
class Attention:
    """One family of kernels: `attention_KIND` and `attention_KIND_backward`.

    Attributes:
        forward, backward: names of the parameters.
        about: what the forward computes, and the backward.
    """

    kind: str
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    sums: Sums
    fourth: Fourth
    about: tuple[str, str]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that the forward takes."""
        return tuple(name for name in self.forward if name in TENSORS)

    @property
    def gradients_of(self) -> tuple[str, ...]:
        """The tensors that the backward takes."""
        return tuple(name for name in self.backward if name in TENSORS or name == "sums")


def padded(rows: int) -> int:
    """Rows of a logsumexp that is padded."""
    return -(-rows // PADDED_ROWS) * PADDED_ROWS


ATTENTIONS = {
    kind: Attention(kind, tuple(forward.split()), tuple(backward.split()), sums, fourth, about)
    for kind, forward, backward, sums, fourth, about in (
        (
            "cpu",
            "q k v dropout causal bias scale",
            "grad q k v out sums dropout causal bias scale",
            Sums.BY_ROW,
            Fourth.NOTHING,
            (
                "softmax(q k^T * scale + bias) v -> (out, logsumexp of each row). scale None means 1/sqrt(width).",
                "Gradients by q, k and v of attention_cpu.",
            ),
        ),
        (
            "flash",
            "q k v causal scale",
            "grad q k v out sums causal scale",
            Sums.ROWS,
            Fourth.NOTHING,
            (
                "softmax(q k^T * scale) v -> (out, logsumexp of each row in float32). scale None means 1/sqrt(width).",
                "Gradients by q, k and v of attention_flash.",
            ),
        ),
        (
            "efficient",
            "q k v bias sums causal scale",
            "grad q k v bias out sums mask causal scale",
            Sums.PADDED,
            Fourth.BIAS,
            (
                "softmax(q k^T * scale + bias) v -> (out, logsumexp of each row in padded rows; empty without `sums`).",
                "Gradients by q, k, v and bias of attention_efficient; None where `mask` is False.",
            ),
        ),
        (
            "cudnn",
            "q k v bias sums causal scale",
            "grad q k v out sums bias causal scale",
            Sums.COLUMN,
            Fourth.NOTHING,
            (
                "softmax(q k^T * scale + bias) v -> (out, logsumexp of rows, then a dimension of 1; empty without).",
                "Gradients by q, k and v of attention_cudnn.",
            ),
        ),
        (
            "tiled",
            "q k v bias seed sums causal scale dropout stream precision",
            "grad q k v bias out sums seed mask causal scale dropout stream precision",
            Sums.PADDED,
            Fourth.SCORES,
            (
                "As attention_efficient, with weights dropped as `random` of the same seed and stream says.",
                "Gradients by q, k, v and each score of attention_tiled; None where `mask` is False.",
            ),
        ),
    )
}
"""`tiled` is our own. `dropout`: the share of weights that is dropped, the seed is None where it is 0; `precision`: of
products of float32, "tf32" or "ieee". The others are the library's and drop no weights: `cpu`, which has the parameter,
refuses any share but 0."""
