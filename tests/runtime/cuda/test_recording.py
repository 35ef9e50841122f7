"""The native parts of recordings: comparing addresses, handing out memory and counting it back."""

import gc
import threading

import pytest
import torch

from smelt.base.torch_c import storage_is_gone
from smelt.runtime import native_layout
from smelt.runtime._native import Addresses, Memory, data_ptr
from smelt.runtime.cuda.observation import Observation, WeakStorage, kind_of

FLOAT = 2


def memory_of(tensors, others=()):
    kinds = [(t.data_ptr(), tuple(t.shape), t.stride(), FLOAT, 32) for t in tensors]
    return Memory(list(tensors), [*kinds, *others], (1, 0))


def test_addresses_name_the_first_input_that_differs():
    a, b = torch.ones(3), torch.ones(4)
    places = Addresses([a, b, 5, None], [False, True, False, False])
    assert places.first([a, b, 5, None]) == -1
    assert places.first([a.view(3), torch.ones(4), 5, None]) == -1
    assert places.first([a.clone(), b, 5, None]) == 0
    assert places.first([a[1:], b, 5, None]) == 0
    assert places.first([a, b, 6, None]) == 2
    assert places.first([a, b, 5.0, None]) == 2
    assert places.first([a, b, 5, 0]) == 3
    assert places.first([7, b, 5, None]) == 0
    assert places.first([a.to("meta"), b, 5, None]) == 0
    with pytest.raises(ValueError, match="4 inputs"):
        places.first([a])
    with pytest.raises(ValueError):
        Addresses([a], [])
    with pytest.raises(TypeError):
        Addresses([a.to("meta")], [False])


@pytest.mark.parametrize("number", [1, 1.0, True, 0.0, -0.0, float("nan"), 2**80, None])
def test_numbers_are_compared_as_programs_see_them(number):
    places = Addresses([number], [False])
    for other in (1, 1.0, True, 0.0, -0.0, float("nan"), 2**80, None):
        same = type(other) is type(number) and repr(other) == repr(number)
        assert places.first([other]) == (-1 if same else 0)


def test_memory_hands_out_tensors_inputs_and_gaps():
    kept = torch.arange(6.0).reshape(2, 3)
    memory = memory_of([kept, kept.t()], [1, None])
    given = [object(), torch.ones(1)]
    a, b, c, d = memory.hand_out(given)
    assert torch.equal(a, kept) and torch.equal(b, kept.t()) and b.stride() == (1, 3)
    assert a.data_ptr() == kept.data_ptr() and c is given[1] and d is None
    assert memory.in_use == 2 and memory.positions() == [0, 1]
    view = a[0]
    del a
    assert memory.in_use == 2
    del view
    assert memory.in_use == 1 and memory.positions() == [1]
    del b
    assert memory.in_use == 0


def test_memory_is_not_handed_out_twice():
    memory = memory_of([torch.ones(2), torch.ones(3)])
    first, second = memory.hand_out([])
    del first
    with pytest.raises(RuntimeError, match="in use"):
        memory.hand_out([])
    assert memory.in_use == 1  # what was handed out before the error is back
    del second
    assert memory.in_use == 0
    memory.hand_out([])
    assert memory.in_use == 0


def test_memory_refuses_what_it_cannot_hand_out():
    tensor = torch.ones(2)
    with pytest.raises(IndexError, match="input 3 of 1"):
        memory_of([tensor], [3]).hand_out([tensor])
    with pytest.raises(TypeError):
        memory_of([tensor]).hand_out((tensor,))
    with pytest.raises(ValueError):
        memory_of([], [-1])
    with pytest.raises(ValueError):
        memory_of([], [(tensor.data_ptr(), (2,), (1, 1), FLOAT, 32)])
    with pytest.raises(ValueError, match="at most 16"):
        memory_of([], [(tensor.data_ptr(), (1,) * 17, (1,) * 17, FLOAT, 32)])
    with pytest.raises(TypeError):
        memory_of([], ["x"])


def test_storage_lives_as_long_as_its_tensors():
    tensor = torch.ones(1000)
    weak = WeakStorage(tensor)
    memory = memory_of([tensor])
    (handed,) = memory.hand_out([])
    del tensor, memory
    gc.collect()
    assert not weak.gone and handed.sum().item() == 1000
    thread = threading.Thread(target=lambda box: box.clear(), args=([handed],))
    del handed
    thread.start()
    thread.join()
    assert weak.gone


def test_tensors_freed_by_many_threads_are_counted():
    memory = memory_of([torch.ones(2) for _ in range(64)])
    for _ in range(50):
        handed = memory.hand_out([])
        parts = [handed[i::4] for i in range(4)]
        del handed
        threads = [threading.Thread(target=lambda part: part.clear(), args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        parts.clear()
        assert memory.in_use == 0


def test_handed_out_memory_serves_autograd():
    weight = torch.nn.Parameter(torch.ones(3))
    memory = memory_of([torch.full((3,), 2.0)])
    (grad,) = memory.hand_out([])
    address = grad.data_ptr()

    class Give(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            return w.sum()

        @staticmethod
        def backward(ctx, g):
            return box.pop()

    box = [grad]
    del grad
    Give.apply(weight).backward()
    assert weight.grad.data_ptr() == address and memory.in_use == 1  # taken over, not copied
    weight.grad = None
    assert memory.in_use == 0


def test_a_weak_storage_identifies_memory_when_an_address_is_reused():
    tensor = torch.ones(100)
    weak = WeakStorage(tensor)
    assert weak.holds(tensor) and weak.holds(tensor[1:]) and not weak.gone
    address = tensor.data_ptr()
    del tensor
    assert weak.gone and storage_is_gone(weak.pointer)
    other = torch.ones(100)
    assert not weak.holds(other) and address


def test_observations():
    weight, x, y = torch.nn.Parameter(torch.ones(2)), torch.ones(2), torch.ones(0)
    inputs = [weight, x, y, 3]
    kind = kind_of(inputs, ())
    assert kind == (weight.data_ptr(), None, None, "3")
    assert kind_of(inputs, {x.data_ptr()})[1] == x.data_ptr()
    seen = Observation(inputs)
    assert seen.moved(inputs, kind, ()) == set()
    assert seen.moved([weight, torch.ones(2), torch.ones(0), 3], kind, ()) == {1}
    assert seen.moved([weight, torch.ones(2), y, 3], kind, {1}) == set()
    first, second = torch.ones(4), torch.ones(8)
    seen.note([first, first[1:], x, weight, 5, second])
    assert seen.kept() == ({0, 5}, 48)
    del first
    assert seen.kept() == ({5}, 32)


def test_further_devices_are_read_fast_when_all_samples_agree(monkeypatch):
    before = native_layout._layout
    assert native_layout.admit(torch.device("cpu")) and native_layout._layout == before
    try:
        monkeypatch.setattr(native_layout, "_agrees", lambda tensors: False)
        assert not native_layout.admit(torch.device("cpu")) and native_layout._layout == before
        tensor = torch.ones(3)
        assert data_ptr(tensor) == tensor.data_ptr()
    finally:
        native_layout._set(before)
