"""Views of captured values are computed on indices, whatever they are."""

from __future__ import annotations

import torch

from smelt.tiny.captured.views import VIEWS, View, heads, image, rows

aten = torch.ops.aten


def test_a_view_of_the_index_is_the_index_of_the_view() -> None:
    values = torch.randn(2 * 3 * 4 * 5)
    view = View("x", image(2, (3, 4, 5)))
    calls = [
        (aten.permute.default, ([0, 2, 3, 1],)),
        (aten.reshape.default, ([2, 5, 12],)),
        (aten.select.int, (2, 1)),
        (aten.slice.Tensor, (3, 1, 3)),
        (aten.unsqueeze.default, (1,)),
        (aten.expand.default, ([2, 5, 3, 4],)),
    ]
    for target, arguments in calls:
        assert target in VIEWS
        made = view.through(target, arguments, {})
        assert isinstance(made, View)
        assert torch.equal(values[made.index], target(values[view.index], *arguments))
    parts = view.through(aten.split.Tensor, (2, 1), {})
    assert isinstance(parts, tuple) and [len(one.index[0]) for one in parts] == [2, 2, 1]
    assert view.covers_tensors(60, 2) and not parts[0].covers_tensors(60, 2) and not view.covers_tensors(60, 1)


def test_rows_in_any_order_with_one_order_of_columns() -> None:
    index = torch.arange(24).reshape(4, 6)
    found = rows(index[[2, 0, 3, 1]][:, [5, 0, 1, 2, 3, 4]])
    assert (
        found is not None and found[0].flatten().tolist() == [12, 0, 18, 6] and found[1].tolist() == [5, 0, 1, 2, 3, 4]
    )
    assert rows(index.T) is None and rows(index[:, ::2]) is None and rows(index + 1) is None
    mixed = index.clone()
    mixed[1] = mixed[1].flip(0)
    assert rows(mixed) is None


def test_heads_are_consecutive_channels() -> None:
    qkv = torch.arange(2 * 5 * 24).reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    for number in range(3):
        assert heads(View("x", qkv[number].flatten(0, 1)), 120, 24, 2) == (8 * number, 4)
    interleaved = torch.arange(2 * 5 * 8).reshape(2, 5, 4, 2).permute(0, 3, 1, 2).flatten(0, 1)
    assert heads(View("x", interleaved), 40, 8, 2) is None
