"""Attention's masks on a GPU."""

import torch
import torch.nn.functional as F

from smelt.graph.nodes import attention
from smelt.graph.nodes.attention import for_attention


def test_only_attention_is_replaced():
    assert for_attention(torch.add) is torch.add
    assert for_attention(F.scaled_dot_product_attention) is not F.scaled_dot_product_attention


def test_expanded_masks_become_dense_where_they_are_on_a_gpu(monkeypatch):
    class Mask:
        device, copied = torch.device("cuda"), False

        def dim(self) -> int:
            return 4

        def stride(self, d: int) -> int:
            return 0

        def contiguous(self) -> str:
            return "dense"

    seen = []
    monkeypatch.setattr(attention, "_ATTENTION", lambda *a, **k: seen.append((a, k)))
    attention._with_dense_mask(1, 2, 3, attn_mask=Mask(), dropout_p=0.5)
    attention._with_dense_mask(1, 2, 3, Mask(), 0.5, True)
    attention._with_dense_mask(1, 2, 3, None, 0.5)
    assert seen == [
        ((1, 2, 3, "dense"), {"dropout_p": 0.5}),
        ((1, 2, 3, "dense", 0.5, True), {}),
        ((1, 2, 3, None, 0.5), {}),
    ]


def test_masks_of_the_cpu_stay_as_they_are():
    q = torch.randn(2, 3, 4, 8)
    mask = torch.ones(2, 1, 4, 1, dtype=torch.bool).expand(2, 1, 4, 4)
    torch.testing.assert_close(
        for_attention(F.scaled_dot_product_attention)(q, q, q, attn_mask=mask), F.scaled_dot_product_attention(q, q, q)
    )
