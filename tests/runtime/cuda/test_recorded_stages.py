"""Programs in stages with recordings: right results, stage by stage, whatever happens between the stages."""

import gc
import threading

import pytest
import torch

import smelt
from smelt.abi.staged import Staged
from smelt.base.stats import reset_stats
from smelt.gpu import Recordings
from smelt.runtime.cuda.graphs import Recorder
from tests.runtime.fake_device import FakeDevice

CPU = torch.device("cpu")


@pytest.fixture(params=["buffers of their own", "buffers that lie over each other"])
def device(request):
    made = FakeDevice()
    if "over" in request.param:
        made.block = torch.zeros(1 << 16, dtype=torch.uint8)
    return made


def program_of(log):
    """x, w -> (third stage) x + w, (first) x * w, (second) x - w and x * w * 2; the last reads what the first made."""

    def steps(inputs):
        x, w = inputs
        inputs.clear()
        product = x * w
        log.append(1)
        yield [product.clone()]
        log.append(2)
        given = [x - w, product * 2]
        yield given
        log.append(3)
        yield [x + w]

    return Staged(steps, [(1,), (2, 3), (0,)])


def expected(x, w):
    return [x + w, x * w, x - w, x * w * 2]


def wrapped(device, log, **more):
    return Recorder(CPU, name="f", backend=device, **more).wrap(program_of(log), "backward", written=(), visible=0)


def by_stages(call, inputs):
    """The results in order. It drops the iterator after the last stage, as autograd's nodes do."""
    results = [None] * 4
    steps = call.begin(inputs)
    for positions in call.positions:
        for position, value in zip(positions, next(steps), strict=True):
            results[position] = value
    return results


def test_plain_recorded_replayed(device):
    log, w = [], torch.nn.Parameter(torch.randn(4))
    call = wrapped(device, log)
    reset_stats()
    with torch.no_grad():
        for i in range(6):
            x = torch.full((4,), float(i))
            torch.testing.assert_close(by_stages(call, [x, w]), expected(x, w), rtol=0, atol=0)
    assert device.records == 1 and device.replays == 5
    assert call.reasons()[0] == "f, backward: 1 CUDA graph"
    (recording,) = call.recordings
    assert recording.moving == (0,) and not recording.in_use


def test_all_at_once(device):
    call = wrapped(device, [])
    w = torch.nn.Parameter(torch.randn(4))
    with torch.no_grad():
        for i in range(4):
            x = torch.full((4,), float(i))
            torch.testing.assert_close(call([x, w]), expected(x, w), rtol=0, atol=0)
    assert device.records == 1 and device.replays == 3


def test_a_stage_runs_when_it_is_asked_for(device):
    log, w = [], torch.nn.Parameter(torch.randn(4))
    call = wrapped(device, log)
    with torch.no_grad():
        for _ in range(4):
            log.clear()
            steps = call.begin([torch.randn(4), w])
            for stage in range(1, 4):
                next(steps)
                assert log[-3:] == [*range(1, 4)][:stage][-3:] if len(log) == stage else log[-1] == stage
            assert next(steps, None) is None


def test_calls_between_stages_run_plain_and_are_right(device):
    recorder = Recorder(CPU, name="f", backend=device)
    w = torch.nn.Parameter(torch.randn(4))
    other = recorder.wrap(lambda inputs: [inputs[0] + 1], "forward", written=(), visible=1)
    call = recorder.wrap(program_of([]), "backward", written=(), visible=0)
    with torch.no_grad():
        for i in range(5):
            x = torch.full((4,), float(i))
            assert torch.equal(other([x])[0], x + 1)
            results = [None] * 4
            for positions, given in zip(call.positions, call.begin([x, w]), strict=True):
                assert torch.equal(other([x])[0], x + 1)
                for position, value in zip(positions, given, strict=True):
                    results[position] = value
            torch.testing.assert_close(results, expected(x, w), rtol=0, atol=0)
    assert call.made == 1
    assert "another thread, or a call around this one, was using the memory of replays" in other.why


def test_a_program_that_is_not_run_to_its_end_unlocks_the_device(device):
    w = torch.nn.Parameter(torch.randn(4))
    call = wrapped(device, [])
    with torch.no_grad():
        by_stages(call, [torch.ones(4), w])
        for i in range(8):
            x = torch.full((4,), float(i))
            steps = call.begin([x, w])
            assert torch.equal(next(steps)[0], x * w)
            if i % 2:
                steps.close()
            del steps
            assert not device.replaying.locked()
    assert call.made == 1


def test_another_thread_may_end_it(device):
    w = torch.nn.Parameter(torch.randn(4))
    call = wrapped(device, [])
    with torch.no_grad():
        for i in range(4):
            steps = call.begin([torch.full((4,), float(i)), w])
            next(steps)
            thread = threading.Thread(target=lambda steps=steps: [*steps])
            thread.start()
            thread.join()
            assert not device.replaying.locked()


def test_an_error_between_recordings_of_stages_runs_plain_ever_after(device):
    calls = []

    def steps(inputs):
        calls.append(1)
        yield [inputs[0] + 1]
        if len(calls) == 2:
            raise ValueError("planted")
        yield [inputs[0] + 2]

    call = Recorder(CPU, name="f", backend=device).wrap(Staged(steps, [(0,), (1,)]), "backward", written=(), visible=0)
    x = torch.ones(3)
    with pytest.warns(UserWarning, match="recording failed: planted"):
        for _ in range(4):
            assert [t[0].item() for t in call([x])] == [2.0, 3.0]
    assert not device.replaying.locked() and not call.recordings


def test_results_in_use_are_not_written_over(device):
    w = torch.nn.Parameter(torch.ones(4))
    call = wrapped(device, [])
    kept = []
    with torch.no_grad():
        for i in range(12):
            x = torch.full((4,), float(i))
            kept.append(by_stages(call, [x, w])[i % 4])
    for i, value in enumerate(kept):
        assert torch.equal(value, expected(torch.full((4,), float(i)), torch.ones(4))[i % 4])


def test_inputs_live_until_the_last_stage(device):
    w = torch.nn.Parameter(torch.ones(4))
    call = wrapped(device, [])
    with torch.no_grad():
        x = torch.ones(4)
        for _ in range(4):
            inputs = [x, w]
            steps = call.begin(inputs)
            next(steps)
            next(steps)
            next(steps)
            assert not inputs
            steps.close()


def test_recordings_are_freed_with_the_program(device):
    w = torch.nn.Parameter(torch.ones(4))
    call = wrapped(device, [])
    with torch.no_grad():
        for _ in range(3):
            by_stages(call, [torch.ones(4), w])
    assert len(device.kept) == 1
    gc.disable()
    try:
        del call
        assert not len(device.kept)
    finally:
        gc.enable()


def test_nodes_of_autograd_take_stages_of_replays(device, monkeypatch):
    recorder = Recorder(CPU, name="f", backend=device)

    def of_graph(self, programs, split, old):
        first, *backward = programs
        first = recorder.wrap(first, "forward", written=(), visible=self.joint.num_forward)
        return [first, *(recorder.wrap(program, "backward", written=(), visible=0) for program in backward)]

    monkeypatch.setattr(Recordings, "of_graph", of_graph)
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(8, 8), torch.nn.Tanh())))
    smelt.reset()
    compiled = smelt.compile(net, options={"stages": 200})
    launched = []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: launched.append(device.stages))
    for _ in range(8):
        x = torch.randn(6, 8)
        net.zero_grad()
        net(x).square().sum().backward()
        wanted = [parameter.grad.clone() for parameter in net.parameters()]
        net.zero_grad()
        before = device.stages
        launched.clear()
        compiled(x).square().sum().backward()
        for parameter, gradient in zip(net.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        assert not device.replaying.locked()
    forward, backward = recorder.programs
    assert isinstance(backward, Staged)
    assert forward.replays >= 5 and backward.replays >= 5, recorder.reasons()
    assert device.stages - before == 1 + len(backward.positions) and len({*launched}) == len(backward.positions) > 3
