"""Programs below autograd and outside of autocast: keys set from C are what torch's guards exclude; nothing stays."""

import gc
import threading
import weakref

import pytest
import torch

from smelt.autograd import _native
from smelt.autograd.call import dispatch
from smelt.autograd.call.dispatch import called_plainly, excluding
from smelt.base.torch_c import below_autograd, disable_autocast, local_dispatch_keys

MODES = {
    "plain": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "below": below_autograd,
    "autocast off": disable_autocast,
}
GUARDS = {"below": (below_autograd,), "autocast": (disable_autocast,), "both": (below_autograd, disable_autocast)}


def keys(_):
    return [local_dispatch_keys()]


@pytest.fixture(params=["native", "guards"])
def way(request, monkeypatch):
    if request.param == "guards":
        monkeypatch.setattr(dispatch, "_found", {})
    return request.param


@pytest.mark.parametrize("guards", GUARDS.values(), ids=GUARDS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_program_sees_what_it_sees_inside_of_the_guards(mode, guards, way):
    run = excluding(keys, *guards)
    assert isinstance(run, _native.Excluding) == (way == "native")
    with mode():
        before = local_dispatch_keys()
        with guards[0](), guards[-1]():
            wanted = local_dispatch_keys()
        assert run([]) == [wanted]
        assert local_dispatch_keys() == before


def test_results_are_a_tuple_and_the_program_gets_a_list_of_its_own(way):
    given = []

    def program(inputs):
        given.append(inputs)
        inputs.clear()
        return [*given[:0], 1, 2]

    assert called_plainly(program)(torch.ones(1), torch.ones(2)) == (1, 2)
    assert type(given[0]) is list


def test_inputs_of_a_boxed_program_die_in_it(way):
    def program(inputs):
        tensor = weakref.ref(inputs[0])
        inputs.clear()
        return [tensor() is None]

    assert excluding(program, below_autograd)([torch.ones(3)]) == [True]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_stays_after_an_error(error, way):
    def program(inputs):
        raise error

    before = local_dispatch_keys()
    with pytest.raises(error):
        excluding(program, below_autograd)([])
    with pytest.raises(error):
        called_plainly(program)()
    assert local_dispatch_keys() == before


def test_calls_within_calls_leave_what_was_there(way):
    inner = excluding(keys, below_autograd, disable_autocast)
    seen = []

    def program(inputs):
        before = local_dispatch_keys()
        inner([])
        seen.append(before == local_dispatch_keys())
        return []

    with torch.autocast("cpu"):
        excluding(program, below_autograd)([])
    assert seen == [True]


def test_another_thread_sets_its_own_keys(way):
    found = []
    here = local_dispatch_keys()

    def run():
        before = local_dispatch_keys()
        found.append(excluding(keys, below_autograd)([])[0] != before)
        found.append(local_dispatch_keys() == before)

    def program(inputs):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return []

    excluding(program, below_autograd)([])
    assert found == [True, True] and local_dispatch_keys() == here


def test_the_search_waits_for_a_thread_without_modes(monkeypatch):
    monkeypatch.setattr(dispatch, "_found", None)
    with torch.autocast("cpu"):
        assert not isinstance(excluding(keys, below_autograd), _native.Excluding)
    assert isinstance(excluding(keys, below_autograd), _native.Excluding)


def test_wrong_calls_are_errors():
    run = excluding(keys, below_autograd)
    with pytest.raises(TypeError):
        run([], [])
    with pytest.raises(TypeError):
        run(inputs=[])
    with pytest.raises(TypeError):
        _native.Excluding(3, 1, True)


def test_a_program_that_leads_to_its_call_is_collected():
    class Program:
        def __call__(self, inputs):
            return inputs

    program = Program()
    program.run = excluding(program, below_autograd)
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None
