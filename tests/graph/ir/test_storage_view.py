"""Layouts are shared, places lead to their storage's root, steps replay on real tensors."""

from __future__ import annotations

import torch

from smelt.graph.ir.storage_view import Step, StorageView, layout_for, layout_of

aten = torch.ops.aten


def layout(*shape: int, offset: int = 0):  # noqa: ANN202
    return layout_of(torch.empty(*shape)) if not offset else layout_of(torch.empty(offset + 4)[offset:])


def test_equal_layouts_are_one_object() -> None:
    assert layout(2, 3) is layout(2, 3)
    assert layout(2, 3) is not layout(3, 2)
    assert layout(4, offset=1) is not layout(4)


def test_meta_tensor_has_the_layout() -> None:
    source = torch.empty(4, 6)[1:, ::2]
    meta = layout_of(source).on_meta()
    assert (meta.shape, meta.stride(), meta.storage_offset()) == (source.shape, source.stride(), 6)
    assert layout_of(source).fresh() is not layout_of(source).fresh()


def test_storage_views_share_the_storage_of_their_root() -> None:
    root = StorageView(layout(2, 3))
    child = StorageView(layout(3), root, Step(aten.select.int, (0, 1), {}, None))
    assert child.storage is root.storage and child.storage.root is root
    assert StorageView(layout(2, 3)).storage is not root.storage


def test_steps_replay() -> None:
    x = torch.arange(6).reshape(2, 3)
    assert torch.equal(Step(aten.select.int, (0, 1), {}, None)(x), x[1])
    assert torch.equal(Step(aten.unbind.int, (1,), {}, 2)(x), x[:, 2])
    with torch.no_grad():
        assert not Step(aten.t.default, (), {}, None).grad


def test_symbols_of_a_layout() -> None:
    one = layout_for((2,), torch.int64, (1,), torch.device("cpu"))
    assert one.val.dtype is torch.int64 and one.offset == 0
