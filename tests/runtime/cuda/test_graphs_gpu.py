"""Recording and replay on a real GPU: what the device of the other tests only imitates."""

import gc
import threading
import warnings

import pytest
import torch

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.torch_c import below_autograd
from smelt.runtime.cuda.device import Device, device_at
from smelt.runtime.cuda.graphs import Recorder
from smelt.runtime.launch import data_ptr, read_fast

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture
def recorder():
    return Recorder(torch.device("cuda"), name="f")


def run(call, inputs):
    with torch.no_grad(), below_autograd():
        return call(inputs)


def test_data_pointers_are_read_without_python():
    assert read_fast(torch.device("cuda", torch.cuda.current_device()))
    tensor = torch.ones(5, device="cuda")
    assert data_ptr(tensor) == tensor.data_ptr() and data_ptr(tensor[1:]) == tensor[1:].data_ptr()


def test_a_program_that_launches_nothing_is_recorded_without_a_warning(recorder):
    call = recorder.wrap(lambda inputs: [inputs[0].t()], "forward", written=[])
    weight = torch.nn.Parameter(torch.randn(3, 4, device="cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert torch.equal(run(call, [weight])[0], weight.t())


def test_buffers_for_inputs_are_in_the_arena_of_recordings():
    """Programs that are replayed one after the other, with inputs that move, share the memory of their copies."""
    square = torch.randn(2048, 2048, device="cuda")
    large = smelt.compile(lambda a: torch.sin(torch.sin(a @ a) @ a))  # its arena has room for others' inputs
    xs, weight = [torch.randn(1 << 20, device="cuda") for _ in range(4)], torch.randn(1 << 20, device="cuda")

    def small(x, w, k):
        return torch.softmax((x * w * k).view(1 << 10, -1), 1) @ w.view(1 << 10, -1)

    compiled = [smelt.compile(lambda x, w, k=k: small(x, w, k)) for k in range(1, 4)]
    known = set(device_at(torch.device("cuda")).kept)
    for _ in range(4):
        large(square)
        for x in xs:
            for k, f in enumerate(compiled, 1):
                torch.testing.assert_close(f(x, weight), small(x, weight, k), rtol=1e-3, atol=1e-2)
    recorded = [each for each in set(device_at(torch.device("cuda")).kept) - known if each.buffers]
    assert len(recorded) >= 3
    assert all(each.kept_bytes == sum(each.bytes.values()) for each in recorded)  # none has buffers of its own


def test_replays_compute_what_the_program_does(recorder):
    weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
    total = torch.zeros(64, device="cuda")

    def program(inputs):
        x, w, t = inputs
        y = (x @ w).relu()
        t.add_(y.sum(0))
        return [y, y.t(), t, w.t()]

    call = recorder.wrap(program, "forward", written=[2])
    wanted = torch.zeros(64, device="cuda")
    for _ in range(6):
        x = torch.randn(8, 64, device="cuda")
        y, turned, same, view = run(call, [x, weight, total])
        wanted += (x @ weight).relu().sum(0)
        torch.testing.assert_close(y, (x @ weight).relu())
        torch.testing.assert_close(total, wanted)
        assert same is total and view.data_ptr() == weight.data_ptr() and turned.data_ptr() == y.data_ptr()
        del y, turned
    assert call.made == 1 and call.replays == 5


def test_live_output_is_never_overwritten(recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2, (inputs[0] + 1) @ inputs[0]], "forward")
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        for i in range(40):
            x = torch.full((32, 32), float(i), device="cuda")
            kept.append((i, *run(call, [x])))
            if i % 5 == 4:
                del kept[::2]
    assert call.replays > 10
    for i, doubled, product in kept:
        assert doubled.eq(2 * i).all() and product.eq((i + 1) * i * 32).all()


def test_random_numbers_of_replays_follow_the_generator(recorder):
    call = recorder.wrap(lambda inputs: [torch.rand_like(inputs[0])], "forward")
    x = torch.ones(1000, device="cuda")

    def draw():
        torch.manual_seed(3)
        return [run(call, [x])[0].clone() for _ in range(4)]

    first, second = draw(), draw()
    assert not torch.equal(second[0], second[1])
    assert all(torch.equal(a, b) for a, b in zip(second, draw(), strict=True)) and len(first) == 4


def test_a_program_that_cannot_be_recorded_leaves_the_device_as_it_was(recorder):
    def program(inputs):
        y = torch.rand_like(inputs[0]) + inputs[0]
        if y.sum().item() < 0:
            return [inputs[0]]
        return [y * 0 + inputs[0]]

    call = recorder.wrap(program, "forward")
    x = torch.ones(1000, device="cuda")
    run(call, [x])
    with pytest.warns(SmeltWarning, match="recording failed"):
        (y,) = run(call, [x])
    assert torch.equal(y, x)
    assert torch.rand(5, device="cuda").shape == (5,)  # the generator does not think that it is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = x * 2
    graph.replay()
    assert z.eq(2).all()
    good = recorder.wrap(lambda inputs: [torch.rand_like(inputs[0]), inputs[0] * 3], "other")
    for _ in range(3):
        assert run(good, [x])[1].eq(3).all()
    assert good.made == 1


def test_memory_comes_back(recorder):
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    call = recorder.wrap(lambda inputs: [inputs[0] @ inputs[0], inputs[0] * 2], "forward")
    x = torch.ones(2048, 2048, device="cuda")
    for _ in range(3):
        run(call, [x])
    product, doubled = run(call, [x])
    del product, call
    gc.collect()
    assert doubled.eq(2).all()
    del doubled, x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before[0] + (64 << 20)
    assert torch.cuda.memory_reserved() <= before[1] + (64 << 20)


def test_streams(recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] @ inputs[0]], "forward")
    streams = [torch.cuda.Stream() for _ in range(2)]
    x = torch.eye(512, device="cuda")
    torch.cuda.synchronize()
    for i in range(60):
        with torch.cuda.stream(streams[i % 2]):
            (y,) = run(call, [x * i])
            total = y.trace()
            del y
        streams[i % 2].synchronize()
        assert total.item() == 512 * i * i
    found = torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    for i in range(200):  # without waiting on the host in between
        with torch.cuda.stream(streams[i % 2]):
            (y,) = run(call, [x * (i % 7)])
            found.add_((y.trace() - 512 * (i % 7) ** 2).abs())
            del y
        streams[(i + 1) % 2].wait_stream(streams[i % 2])
    torch.cuda.synchronize()
    assert found.item() == 0 and call.replays > 200


def test_inside_of_a_graph_of_the_caller(recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    x = torch.ones(16, device="cuda")
    for _ in range(3):
        run(call, [x])
    made = call.replays
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = run(call, [x])
    x.fill_(5)
    graph.replay()
    assert y.eq(10).all() and call.replays == made
    assert run(call, [x])[0].eq(10).all() and call.replays == made + 1


def test_several_threads(recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] @ inputs[1], inputs[0] + 1], "forward")
    weight = torch.nn.Parameter(torch.eye(128, device="cuda"))
    wrong = []

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(100):
                x = torch.full((128, 128), float(number * 100 + i), device="cuda")
                y, z = run(call, [x, weight])
                if not (torch.equal(y, x) and torch.equal(z, x + 1)):
                    wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_gradients_in_the_engines_thread(recorder):
    weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))

    def forward(inputs):
        x, w = inputs
        y = (x @ w).tanh()
        return [y.sum(), x, y]

    def backward(inputs):
        x, y, grad = inputs
        return [x.t() @ ((1 - y * y) * grad)]

    first = recorder.wrap(forward, "forward", written=[], visible=1)
    second = recorder.wrap(backward, "backward", written=[], visible=0)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            with below_autograd():
                loss, *saved = first([x, w])
            ctx.save_for_backward(*saved)
            return loss

        @staticmethod
        def backward(ctx, grad):
            with below_autograd():
                return None, second([*ctx.saved_tensors, grad])[0]

    losses = []
    for i in range(12):
        x = torch.randn(8, 64, device="cuda")
        (wanted,) = torch.autograd.grad((x @ weight).tanh().sum(), weight)
        weight.grad = None if i % 3 else weight.grad
        before = 0 if weight.grad is None else weight.grad.clone()
        loss = Function.apply(x, weight)
        losses.append((loss, (x @ weight).tanh().sum().detach()))
        loss.backward()
        torch.testing.assert_close(weight.grad, wanted + before)
    for got, expected in losses:
        torch.testing.assert_close(got.detach(), expected)
    assert first.replays >= 10 and second.replays >= 6, recorder.reasons()


def test_a_device_without_an_index_is_the_same_device():
    assert Recorder(torch.device("cuda")).device is Recorder(torch.device("cuda", torch.cuda.current_device())).device
    assert isinstance(Recorder(torch.device("cuda")).device, Device)


def test_a_backward_in_stages_is_replayed_stage_by_stage(monkeypatch):
    """Hooks of leaves run between the graphs; they may call compiled functions and wait for the GPU."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Dropout(0.0))]
    net = torch.nn.Sequential(*layers).cuda()
    compiled = smelt.compile(net, options={"stages": 10_000})
    double = smelt.compile(lambda t: t * 2)
    replays = []
    replay = Device.replay
    monkeypatch.setattr(
        Device, "replay", lambda self, graph, stage=0: (replays.append(stage), replay(self, graph, stage))
    )
    seen = {}
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: seen.__setitem__(p, (len(replays), double(p.grad).sum().item()))
        )
    for _ in range(8):
        x = torch.randn(16, 64, device="cuda")
        net.zero_grad()
        net(x).square().sum().backward()
        wanted = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        replays.clear()
        compiled(x).square().sum().backward()
        for parameter, gradient in zip(net.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
            torch.testing.assert_close(seen[parameter][1], (2 * gradient).sum().item(), rtol=1e-4, atol=1e-3)
    assert max(replays) == 3  # a layer has 16,640 bytes of gradients
    assert len({launched for launched, _ in seen.values()}) >= 3  # hooks ran at different stages
