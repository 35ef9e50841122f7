"""Recording and replay on a device that records CPU programs: right results whatever callers keep, write and free."""

import gc
import threading
import warnings
from dataclasses import replace

import pytest
import torch

from smelt import compile, stats
from smelt.abi import device_checks
from smelt.abi.device_checks import DeviceChecks
from smelt.abi.faults import OUT_OF_RANGE, Check
from smelt.autograd.trace.joint import trace_joint
from smelt.base.errors import SmeltWarning
from smelt.base.options import Options, Owner
from smelt.base.stats import reset_stats
from smelt.base.torch_c import below_autograd
from smelt.gpu import _waiting_operator
from smelt.runtime.cuda import device as cuda_device
from smelt.runtime.cuda import recorded_program
from smelt.runtime.cuda.graphs import Recorder
from smelt.runtime.cuda.recording import Recording
from smelt.runtime.tuned import RECORDINGS
from tests.runtime.fake_device import FakeDevice

CPU = torch.device("cpu")


@pytest.fixture(params=["buffers of their own", "buffers that lie over each other"])
def device(request):
    made = FakeDevice()
    if "over" in request.param:
        made.block = torch.zeros(1 << 16, dtype=torch.uint8)
    return made


@pytest.fixture
def recorder(device):
    return Recorder(CPU, name="f", backend=device)


def test_the_second_call_is_recorded_and_later_ones_are_replayed(device, recorder):
    weight = torch.nn.Parameter(torch.randn(4, 4))
    runs = []

    def program(inputs):
        runs.append(1)
        x, w = inputs
        inputs.clear()
        return [x @ w]

    call = recorder.wrap(program, "forward")
    reset_stats()
    with torch.no_grad():
        for i in range(5):
            x = torch.full((3, 4), float(i))
            (y,) = call([x, weight])
            assert torch.equal(y, x @ weight)
            del y
    assert device.records == 1 and device.replays == 4
    assert stats()["cuda_graphs"] == 1 and stats()["cuda_graph_replays"] == 4 and stats()["cuda_graph_plain"] == 1
    first = "f, forward: a call without CUDA graph: the first one with its sizes and parameters"
    assert stats()["cuda_graph_reasons"] == {first: 1}
    assert recorder.reasons() == [
        "f, forward: 1 CUDA graph",
        "f, forward: 1 call without one: the first one with its sizes and parameters",
    ]


def test_parameters_are_read_where_they_are_and_other_inputs_copied(device, recorder):
    weight = torch.nn.Parameter(torch.ones(4))
    call = recorder.wrap(lambda inputs: [inputs[0] * inputs[1]], "forward")
    xs = [torch.randn(4) for _ in range(6)]
    with torch.no_grad():
        for x in xs:
            weight += 1
            (y,) = call([x, weight])
            assert torch.equal(y, x * weight)
            del y
    (recording,) = call.recordings
    assert recording.moving == (0,) and list(recording.sources) == [1]


def test_an_input_that_stays_is_not_copied(device, recorder):
    x = torch.randn(4)
    call = recorder.wrap(lambda inputs: [inputs[0] + 1], "forward")
    for i in range(4):
        x.fill_(i)
        assert torch.equal(call([x])[0], x + 1)
    assert device.records == 1 and not call.recordings[0].moving


def test_results_in_use_are_never_written_over(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2, inputs[0] + 1], "forward")
    kept = []
    for i in range(30):
        x = torch.full((5,), float(i))
        kept.append(call([x]))
        if i % 3 == 0:
            kept[-1] = [kept[-1][0][1:3]]  # a view keeps the memory
    for i, tensors in enumerate(kept):
        assert torch.equal(tensors[0], torch.full_like(tensors[0], 2.0 * i))
        if len(tensors) > 1:
            assert torch.equal(tensors[1], torch.full((5,), 1.0 + i))


def test_callers_that_keep_small_results_get_copies(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2, inputs[0] + 1], "forward")
    kept = []
    for i in range(20):
        kept.append(call([torch.full((5,), float(i))])[0])
    assert [k[0].item() for k in kept] == [2.0 * i for i in range(20)]
    assert call.copied == {0} and device.records == 1 and device.replays == 19
    kept.clear()
    pairs = [call([torch.full((5,), float(i))]) for i in range(5)]
    assert call.copied == {0, 1} and device.records == 2 and device.replays == 24
    assert [[t[0].item() for t in pair] for pair in pairs] == [[2.0 * i, 1.0 + i] for i in range(5)]


def test_much_that_is_kept_is_not_copied_but_ends_recording(device, recorder, monkeypatch):
    monkeypatch.setattr(recorded_program, "RECORDINGS", replace(RECORDINGS, copied_out_bytes=8))
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    kept = []
    with pytest.warns(SmeltWarning, match="tensors of earlier calls were in use, and 8 CUDA graphs") as found:
        for i in range(40):
            kept.append(call([torch.full((5,), float(i))])[0])
    assert len(found) == 1 and device.records == 8 and not call.copied
    assert [k[0].item() for k in kept] == [2.0 * i for i in range(40)]
    kept.clear()
    before = device.replays
    assert call([torch.ones(5)])[0][0].item() == 2.0
    assert device.replays == before + 1


def test_seldom_kept_results_make_no_second_recording(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward", visible=0)
    for i in range(200):
        x = torch.full((5,), float(i))
        kept = call([x])
        if i % 40 == 39:
            assert torch.equal(call([x])[0], x * 2)
        del kept
    assert device.records == 1 and device.replays == 199


def regions(device, number, size):
    """Functions that run one after the other and leave nothing to each other but their result."""
    weights = [torch.nn.Parameter(torch.ones(size)) for _ in range(number)]
    recorders = [Recorder(CPU, name=f"region {i}", backend=device) for i in range(number)]
    return [
        (r.wrap(lambda inputs: [inputs[0] * inputs[1]], "forward"), w) for r, w in zip(recorders, weights, strict=True)
    ]


def test_results_that_are_never_in_use_at_once_are_not_all_kept(device, monkeypatch):
    monkeypatch.setattr(cuda_device, "RECORDINGS", replace(RECORDINGS, spare_bytes=4 << 12))
    calls = regions(device, 12, 1 << 10)
    with torch.no_grad():
        for step in range(5):
            x = torch.full((1 << 10,), float(step))
            for call, w in calls:
                x = call([x, w])[0]
            assert x[0] == step
    made = sum(len(call.recordings) for call, _ in calls)
    assert 3 <= made < 12 and len(device.kept) == made and device.records <= made + (device.block is None)
    assert calls[0][0].recordings and calls[-1][0].refused
    assert "it would keep 0 MiB, 0 too many that other calls could use" in calls[-1][0].reasons()[0]


def test_results_that_are_in_use_at_once_are_kept(device, monkeypatch):
    monkeypatch.setattr(cuda_device, "RECORDINGS", replace(RECORDINGS, spare_bytes=4 << 12))
    calls = regions(device, 12, 1 << 10)
    with torch.no_grad():
        for step in range(5):
            x, saved = torch.full((1 << 10,), float(step)), []
            for call, w in calls:
                x = call([x, w])[0]
                saved.append(x)
            assert x[0] == step
            del saved
    assert all(len(call.recordings) == 1 for call, _ in calls)


def test_a_refused_recording_does_not_raise_the_limit(device, monkeypatch):
    """A program with large results that were never in use: they do not count as memory that is used at once."""
    monkeypatch.setattr(cuda_device, "RECORDINGS", replace(RECORDINGS, spare_bytes=4 << 12))
    calls = regions(device, 12, 1 << 10)
    large = Recorder(CPU, name="large", backend=device).wrap(lambda inputs: [inputs[0].repeat(32)], "forward")
    with torch.no_grad():
        for _ in range(5):
            x = torch.ones(1 << 10)
            for i, (call, w) in enumerate(calls):
                x = call([x, w])[0]
                if i == 6:
                    large([x])
    assert large.refused and not large.recordings
    assert not any(call.recordings for call, _ in calls[6:])


def test_large_models_may_keep_a_share_of_their_memory(device, monkeypatch):
    monkeypatch.setattr(cuda_device, "RECORDINGS", replace(RECORDINGS, spare_bytes=0))
    device.memory = RECORDINGS.spare_divisor * 14 * (4 << 10)
    calls = regions(device, 12, 1 << 10)
    with torch.no_grad():
        for _ in range(5):
            x = torch.ones(1 << 10)
            for call, w in calls:
                x = call([x, w])[0]
    assert all(len(call.recordings) == 1 for call, _ in calls)


@pytest.mark.parametrize("graphs, recorded", [(1, True), (8, False)])
def test_a_model_that_is_one_graph_may_keep_what_its_backward_does_not_read(device, monkeypatch, graphs, recorded):
    """The caller drops half of what forward hands out before backward begins, in which that memory could be used."""
    monkeypatch.setattr(cuda_device, "RECORDINGS", replace(RECORDINGS, spare_bytes=0))
    device.memory = 16 * (4 << 10)
    weight = torch.nn.Parameter(torch.ones(1 << 10))
    recorder = Recorder(CPU, name="model", backend=device)
    forward = recorder.wrap(lambda inputs: [inputs[0] * 2, inputs[0] * 3], "forward", visible=1)
    backward = recorder.wrap(lambda inputs: [inputs[0] * inputs[1]], "backward")
    others = regions(device, graphs - 1, 4)
    with torch.no_grad():
        for _ in range(4):
            for call, w in others:
                call([torch.ones(4), w])
            logits, saved = forward([weight])
            del logits
            assert backward([saved, weight])[0][0] == 3
            del saved
    assert len(forward.recordings) == 1 and bool(backward.recordings) is recorded


@pytest.mark.parametrize("plenty", [True, False])
def test_models_that_take_turns_keep_what_each_needs(device, monkeypatch, plenty):
    """As long as memory is plenty: a generator and its critic, training and evaluation of two compiled models."""
    monkeypatch.setattr(cuda_device, "RECORDINGS", replace(RECORDINGS, spare_bytes=100 << 10))
    calls = []
    for _ in range(4):
        recorder = Recorder(CPU, name="model", backend=device, owner=Owner())
        weights = torch.nn.Parameter(torch.ones(16 << 10))
        calls.append((recorder.wrap(lambda inputs: [inputs[0] * inputs[1]], "forward"), weights))
    device.free = 1 << 40 if plenty else 256 << 10  # each has 64 KiB of results, and as much for its input
    with torch.no_grad():
        for step in range(4):
            for call, w in calls:
                assert call([torch.full((16 << 10,), float(step)), w])[0][0] == step
    made = [len(call.recordings) for call, _ in calls]
    assert made == [1] * 4 if plenty else made == ([1, 0, 0, 0] if device.block is None else [1, 1, 1, 0])
    if not plenty:
        assert "too many that other calls could use" in calls[-1][0].reasons()[0]


def test_one_size_of_many_is_refused_alone(device, recorder, monkeypatch):
    monkeypatch.setattr(cuda_device, "RECORDINGS", replace(RECORDINGS, spare_bytes=0))
    call = recorder.wrap(lambda inputs: [inputs[0] + 1], "forward")
    weights = [torch.nn.Parameter(torch.zeros(size)) for size in (64, 63)]  # they stay where they are: no buffers
    with torch.no_grad():
        for _ in range(4):
            for w in weights:
                assert call([w])[0][0] == 1
    (recording,) = call.recordings
    assert recording.bytes == {0: 256} and call.refused is None and call.made == 1
    assert any("too many that other calls could use" in line for line in recorder.reasons())


def test_several_sizes(device, recorder):
    call = recorder.wrap(lambda inputs: [torch.full((inputs[1],), 1.0) * inputs[0]], "forward")
    for _ in range(3):
        for n in (2, 3):
            (y,) = call([torch.tensor(2.0), n])
            assert torch.equal(y, torch.full((n,), 2.0))
            del y
    assert device.records == 2


def test_sizes_that_keep_changing_end_recording(device, recorder):
    call = recorder.wrap(lambda inputs: [torch.ones(inputs[0])], "forward")
    with pytest.warns(SmeltWarning, match="input 0 has changed, and 8 CUDA graphs had been recorded") as found:
        for _ in range(2):
            for n in range(1, 12):
                assert call([n])[0].numel() == n
    assert len(found) == 1 and device.records == 8


def test_numbers_that_are_equal_but_not_the_same(device, recorder):
    call = recorder.wrap(lambda inputs: [torch.tensor(inputs[0])], "forward")
    for _ in range(3):
        for number in (1, 1.0, True, 0.0, -0.0, float("nan")):
            (y,) = call([number])
            wanted = torch.tensor(number)
            assert y.dtype is wanted.dtype
            assert str(y) == str(wanted)
            del y
    assert device.records == 6


def test_one_layer_code_for_several_layers(device, recorder):
    layers = [torch.nn.Linear(3, 3) for _ in range(4)]
    means = [torch.zeros(3) for _ in layers]

    def program(inputs):
        x, w, b, mean = inputs
        mean.add_(1)
        return [torch.nn.functional.linear(x, w, b), mean]

    call = recorder.wrap(program, "forward", written=[3])
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(2, 3)
            for layer, mean in zip(layers, means, strict=True):
                y, same = call([x, layer.weight, layer.bias, mean])
                assert same is mean and torch.equal(y, layer(x))
                del y
    assert device.records == 4 and [m[0].item() for m in means] == [5.0] * 4
    assert all(recording.moving == (0,) for recording in call.recordings)


@pytest.mark.parametrize("number", [9, 40, 100])
def test_each_of_many_layers_has_its_recording(device, recorder, number):
    """Blocks that share one program: the limit of recordings is that of one block."""
    layers = [torch.nn.Linear(3, 3) for _ in range(number)]
    call = recorder.wrap(lambda inputs: [torch.nn.functional.linear(*inputs)], "forward")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 3)
            for layer in layers:
                expected = layer(x)
                x = call([x, layer.weight, layer.bias])[0]
                assert torch.equal(x, expected)
    assert device.records == number and device.replays == 3 * number and not call.full


def test_parameters_that_are_replaced_again_and_again_end_recording(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        for i in range(60):
            if i % 3 == 0:
                weight = torch.nn.Parameter(torch.full((3,), float(i)))
            assert call([weight])[0][0].item() == (i - i % 3) * 2
    assert device.records == 8 and call.full


def test_a_parameter_that_was_replaced(device, recorder):
    weight = torch.nn.Parameter(torch.ones(3))
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    with torch.no_grad():
        for i in range(9):
            if i % 3 == 0:
                weight.data = torch.full((3,), float(i))
            assert call([weight])[0][0].item() == (i - i % 3) * 2
    assert device.records == 3


def _freed_and_allocated_again(weights, taken, spaces):
    """What sharding does between calls: the same storages, other memory."""
    for weight in weights:
        size, storage = weight.untyped_storage().nbytes(), weight.untyped_storage()
        storage.resize_(0)
        storage.resize_(size)
        while storage.data_ptr() in taken:
            storage.resize_(0)
            spaces.append(torch.empty(size, dtype=torch.uint8))  # the allocator gives no memory that is in use
            storage.resize_(size)
        taken.add(storage.data_ptr())


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("calls", [1, 2, 3], ids=lambda n: f"{n} calls in each place")
def test_parameters_whose_memory_moves_end_recording_and_free_what_was_recorded(device, recorder, blocks, calls):
    weights = [torch.nn.Parameter(torch.empty(1024)) for _ in range(blocks)]
    call = recorder.wrap(lambda inputs: [inputs[0] * inputs[1]], "forward")
    taken, spaces, kept, x = set(), [], [], torch.arange(1024.0)
    with torch.no_grad():
        for place in range(8):
            _freed_and_allocated_again(weights, taken, spaces)
            for i in range(calls * blocks):
                weights[i % blocks].fill_(place)
                assert torch.equal(call([x, weights[i % blocks]])[0], x * place)
            kept.append(len(call.recordings))
    recorded = blocks * (calls > 1)
    assert kept == [recorded] * 3 + [0] * 5 and device.records == 3 * recorded
    assert not device.kept and not device.outputs and not device.fixed
    assert recorder.reasons() == [
        "f, forward: no CUDA graph: the memory of its parameters is freed and allocated again between calls"
    ]


def test_parameters_that_return_to_an_address_are_recorded_there(device, recorder):
    places = [torch.full((64,), float(i)) for i in range(2)]
    weight = torch.nn.Parameter(torch.empty(64))
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    for i in range(12):
        with torch.no_grad():
            weight.set_(places[i % 2])
            assert torch.equal(call([weight])[0], weight * 2)
    assert device.records == 2 and device.replays == 10


def test_blocks_in_one_storage_have_not_moved(device, recorder):
    flat = torch.zeros(20 * 64)
    weights = [torch.nn.Parameter(part) for part in flat.split(64)]
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    with torch.no_grad():
        for step in range(4):
            flat.fill_(step)
            for weight in weights:
                assert torch.equal(call([weight])[0], weight * 2)
    assert device.records == 20 and device.replays == 60 and not call.full


def test_an_input_that_moves_once_it_was_recorded(device, recorder):
    x = torch.ones(3)
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    for _ in range(3):
        call([x])
    others = [torch.full((3,), float(i)) for i in range(5)]
    for i, other in enumerate(others):
        assert call([other])[0][0].item() == 2.0 * i
    assert call([x])[0][0].item() == 2.0
    assert device.records == 2 and len(call.recordings) == 1


def test_much_input_is_not_copied(device, recorder, monkeypatch):
    monkeypatch.setattr(recorded_program, "RECORDINGS", replace(RECORDINGS, copied_in_bytes=100))
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    xs = [torch.full((100,), float(i)) for i in range(5)]
    for i, x in enumerate(xs):
        assert call([x])[0][0].item() == 2.0 * i
    assert device.records == 0
    assert "f, forward: 4 calls without one: 1 input of 0 MiB would be copied at each call" in recorder.reasons()


# -- written inputs


@pytest.mark.parametrize("written", [None, [0]])
def test_a_written_input_that_stays(device, recorder, written):
    total = torch.zeros(3)

    def program(inputs):
        inputs[0].add_(inputs[1])
        return [inputs[0] * 2, inputs[0]]

    call = recorder.wrap(program, "forward", written=written)
    for i in range(6):
        doubled, same = call([total, torch.full((3,), float(i))])
        assert same is total and torch.equal(doubled, total * 2)
        del doubled
    assert total[0].item() == sum(range(6)) and device.records == 1


@pytest.mark.parametrize("written", [None, [0]])
def test_a_written_input_that_moves_gets_its_new_value(device, recorder, written):
    def program(inputs):
        inputs[0].add_(inputs[1])
        return [inputs[0]]

    call = recorder.wrap(program, "forward", written=written)
    for i in range(6):
        wide = torch.zeros(3, 4)
        total = wide[:, 1:3]
        (same,) = call([total, torch.full((3, 1), float(i))])
        assert same is total and torch.equal(total, torch.full((3, 2), float(i)))
        assert not wide[:, 0].any() and not wide[:, 3].any()
    assert device.records == 1 and device.replays == 5


def test_an_input_that_is_only_returned_is_not_written(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0], inputs[0] + 1], "forward", written=[])
    for i in range(4):
        x = torch.full((3,), float(i))
        version = x._version
        same, y = call([x])
        assert same is x and x._version == version and y[0].item() == i + 1
        del y
    assert not call.recordings[0].back


# -- kinds of results


def test_results_that_are_views_of_inputs(device, recorder):
    w = torch.nn.Parameter(torch.randn(3, 4))

    def program(inputs):
        x, w = inputs
        return [w.t(), x[1:, ::2], x.view(torch.int32), x[1]]

    call = recorder.wrap(program, "forward", written=[])
    with torch.no_grad(), below_autograd():
        for _ in range(4):
            x = torch.randn(5, 8)[1:]
            given = [x, w]
            for result, wanted in zip(call(list(given)), program(given), strict=True):
                assert result.data_ptr() == wanted.data_ptr() and result.dtype is wanted.dtype
                assert result.shape == wanted.shape and result.stride() == wanted.stride()
                assert result.untyped_storage()._cdata == wanted.untyped_storage()._cdata
    assert device.replays == 3


def test_results_that_share_memory_go_on_sharing_it(device, recorder):
    def program(inputs):
        base = inputs[0].repeat(4)
        whole = base.view(4, -1)
        return [whole, whole[1], base.view(torch.int32)[3:], base]

    call = recorder.wrap(program, "forward")
    for i in range(4):
        x = torch.full((3,), float(i))
        whole, row, bits, base = call([x])
        for result, wanted in zip((whole, row, bits, base), program([x]), strict=True):
            assert torch.equal(result, wanted) and result.stride() == wanted.stride()
            assert result.storage_offset() == wanted.storage_offset()
        row.fill_(7)
        assert whole[1].eq(7).all() and base[3:6].eq(7).all()
        del whole, bits, base, result, wanted
        busy = call.recordings[0].in_use if call.recordings else 1
        assert busy == 1  # the row keeps the memory
        del row
    assert device.replays == 3


def test_the_same_result_twice(device, recorder):
    def program(inputs):
        y = inputs[0] * 2
        return [y, y, None, 3]

    call = recorder.wrap(program, "forward")
    for _ in range(3):
        a, b, none, three = call([torch.ones(2), 3])
        assert a is b and none is None and three == 3
        del a, b
    assert device.replays == 2


def test_views_of_inputs_that_shared_memory_when_they_were_recorded(device, recorder):
    base = torch.arange(8.0)
    call = recorder.wrap(lambda inputs: [inputs[0][2:], inputs[1][1:]], "forward", written=[])
    parts = [base[:4], base[4:]]
    for _ in range(2):
        call(list(parts))
    apart = [torch.frombuffer(memoryview(base.numpy())[i : i + 4], dtype=torch.float32) for i in (0, 4)]
    first, second = call(list(apart))
    assert first.tolist() == [2.0, 3.0] and second.tolist() == [5.0, 6.0, 7.0] and device.replays == 2


def test_a_slice_of_a_storage_keeps_its_offset(device, recorder):
    call = recorder.wrap(lambda inputs: [(inputs[0] * 2)[1:3]], "forward")
    for _ in range(3):
        (y,) = call([torch.arange(4.0)])
        assert y.storage_offset() == 1 and y.untyped_storage().nbytes() == 16 and y.tolist() == [2.0, 4.0]
        del y
    assert device.replays == 2


def test_tensors_without_elements(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2, inputs[1] + 1, inputs[0]], "forward")
    for i in range(4):
        empty = torch.empty(0, 3)
        y, z, same = call([empty, torch.full((2,), float(i))])
        assert y.shape == (0, 3) and y is not same and same is empty and z[0].item() == i + 1
        del y, z, same
    assert device.records == 1 and device.replays == 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.int64, torch.float8_e4m3fn])
def test_dtypes(device, recorder, dtype):
    call = recorder.wrap(lambda inputs: [inputs[0].clone(), inputs[0][:, 1].clone()], "forward")
    for i in range(3):
        x = torch.tensor([[0, 1, i], [i, 1, 0]]).to(dtype)
        y, z = call([x])
        assert y.dtype is dtype and torch.equal(y.view(torch.uint8), x.view(torch.uint8)) and z.shape == (2,)
        del y, z
    assert device.replays == 2


def test_expanded_inputs(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2 + inputs[1]], "forward")
    for i in range(4):
        x, other = torch.full((1, 3), float(i)).expand(4, 3), torch.ones(())
        assert torch.equal(call([x, other.expand(3)])[0], torch.full((4, 3), 2.0 * i + 1))
    assert device.replays == 3


def test_inference_tensors(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2, inputs[0]], "forward", written=[])
    for i in range(4):
        with torch.inference_mode():
            x = torch.full((3,), float(i))
            y, same = call([x])
            assert same is x and y.is_inference() and y[0].item() == 2.0 * i
            del y
    x = torch.ones(3)
    y, _ = call([x])
    assert not y.is_inference() and device.replays == 4


def test_results_are_plain_new_tensors(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    x = torch.ones(3)
    call([x])
    first = call([x])[0]
    number = id(first)
    assert type(first) is torch.Tensor and not first.requires_grad and first._version == 0 and first.is_leaf
    first.add_(1).requires_grad_()
    address = first.data_ptr()
    del first
    again = call([x])[0]
    assert again.data_ptr() == address and not again.requires_grad and again._version == 0 and number


# -- refusals and failures


def test_an_input_on_another_device_is_refused(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0]], "forward", inputs=["x"])
    call([torch.empty(3, device="meta")])
    call([torch.empty(3, device="meta")])
    assert recorder.reasons() == ["f, forward: no CUDA graph: input 0 (x) is a tensor on meta"]
    assert device.records == 0


def test_a_result_on_another_device_is_refused(device, recorder):
    call = recorder.wrap(lambda inputs: [torch.empty(3, device="meta")], "forward")
    for _ in range(3):
        call([torch.ones(3)])
    assert recorder.reasons() == ["f, forward: no CUDA graph: result 0 is a tensor on meta"]
    assert device.records == 0


def test_numbers_that_a_program_reads_are_refused(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0].sum().item()], "forward")
    assert [call([torch.full((2,), float(i))])[0] for i in range(4)] == [0.0, 2.0, 4.0, 6.0]
    assert device.records == 0 and "read from a tensor" in recorder.reasons()[0]


def test_lazy_conjugates_are_refused(device, recorder):
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    x = torch.ones(2, dtype=torch.complex64) * 1j
    for _ in range(3):
        assert call([x.conj()])[0][0].item() == -2j
    assert "lazy conjugate" in recorder.reasons()[0]


def test_an_error_while_recording(device, recorder):
    total = torch.zeros(3)

    def program(inputs):
        inputs[0].add_(1)
        return [inputs[0]]

    call = recorder.wrap(program, "forward")
    call([total])
    device.error = RuntimeError("operation not permitted when stream is capturing")
    with pytest.warns(SmeltWarning, match="f, forward: recording failed: operation not permitted") as found:
        call([total])
    device.error = None
    for _ in range(3):
        call([total])
    assert len(found) == 1 and device.records == 0 and total[0].item() == 5.0
    assert recorder.reasons()[0].startswith("f, forward: no CUDA graph: recording failed")


def test_an_error_of_the_program_itself(device, recorder):
    def program(inputs):
        if inputs[0].shape[0] == 3:
            raise IndexError("out of range")
        return [inputs[0] * 2]

    call = recorder.wrap(program, "forward")
    for _ in range(3):
        with pytest.raises(IndexError):
            call([torch.ones(3)])
    assert device.records == 0 and call.refused is None
    device.enter()
    device.leave()


def test_a_replay_in_a_lost_context_raises_the_kernels_error(device, recorder, monkeypatch):
    made = DeviceChecks(lambda words: torch.zeros(words, dtype=torch.int64))
    monkeypatch.setattr(device_checks, "_made", [made])
    made.reserve([("k", (Check(OUT_OF_RANGE, "gather", line="model.py:3"),))])
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    for _ in range(2):
        call([torch.ones(3)])
    assert call.recordings

    def replay(*_):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(Recording, "replay", replay)
    with pytest.raises(RuntimeError, match="^CUDA error: unspecified"):
        call([torch.ones(3)])
    made.pages[0][0][:3] = torch.tensor([1, 7, 4])
    with pytest.raises(RuntimeError, match=r"model.py:3: index 7 is out of range for a dimension of size 4"):
        call([torch.ones(3)])


def test_without_a_gpu_programs_stay_what_they_are():
    recorder = Recorder(CPU, name="f")
    program = list
    assert recorder.wrap(program, "forward") is program
    assert recorder.reasons() == ["f: no CUDA graphs: cpu is no GPU"]


# -- streams and threads


def test_another_stream_waits_for_the_last_one(device, recorder):
    x = torch.ones(3)
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    call([x])
    call([x])
    device.handle = 2
    call([x])
    call([x])
    device.handle = 1
    call([x])
    assert device.waits == [(2, 1), (1, 2)] and device.replays == 4
    device.handle, device.other_records = 3, True
    assert call([x])[0][0].item() == 2.0
    assert device.replays == 4 and "another stream records" in recorder.reasons()[-1]


def test_plain_while_the_caller_records(device, recorder):
    x = torch.ones(3)
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    device.user_records = True
    for _ in range(3):
        call([x])
    assert device.records == 0
    device.user_records = False
    for _ in range(3):
        call([x])
    assert device.records == 1


def test_another_thread_runs_plain(device):
    recorder = Recorder(CPU, name="f", backend=device)
    inside, go_on = threading.Event(), threading.Event()

    class Slow(FakeDevice):
        def replay(self, graph):
            super().replay(graph)
            inside.set()
            assert go_on.wait(30)

    recorder.device = Slow()
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    x, results = torch.ones(3), []
    call([x])
    thread = threading.Thread(target=lambda: results.append(call([x])[0]))
    thread.start()
    assert inside.wait(30)
    results.append(call([x])[0])
    go_on.set()
    thread.join()
    assert all(torch.equal(y, x * 2) for y in results) and recorder.device.replays == 1
    assert "another thread, or a call around this one, was using the memory of replays" in recorder.reasons()[-1]


def test_many_threads(device, recorder):
    weight = torch.nn.Parameter(torch.ones(64))
    call = recorder.wrap(lambda inputs: [inputs[0] * inputs[1], inputs[0] + 1], "forward")
    wrong = []

    def work(number):
        with torch.no_grad():
            for i in range(200):
                x = torch.full((64,), float(number * 1000 + i))
                y, z = call([x, weight])
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


# -- memory


def test_memory_is_freed_with_the_recorder(device):
    recorder = Recorder(CPU, name="f", backend=device)
    call = recorder.wrap(lambda inputs: [inputs[0] * 2], "forward")
    x = torch.ones(1000)
    call([x])
    y = call([x])[0]
    memory = call.recordings[0].memory
    assert device.outputs and device.fixed and memory.in_use == 1
    del call
    gc.collect()
    assert not device.outputs and not device.fixed
    assert torch.equal(y, x * 2)  # what was handed out outlives the recorder
    del memory
    assert torch.equal(y, x * 2)
    del y


def test_recorded_tensors_die_with_the_last_one_that_was_handed_out(device):
    recorded = []

    def program(inputs):
        y = inputs[0] * 2
        recorded.append(y.untyped_storage()._weak_ref())
        return [y]

    recorder = Recorder(CPU, name="f", backend=device)
    call = recorder.wrap(program, "forward")
    x = torch.ones(1000)
    call([x])
    y = call([x])[0]
    weak = recorded[1]
    del call
    gc.collect()
    assert not torch.UntypedStorage._expired(weak)
    view = y[3:]
    del y
    assert not torch.UntypedStorage._expired(weak) and view[0].item() == 2.0
    thread = threading.Thread(target=lambda held: held.clear(), args=([view],))
    del view
    thread.start()
    thread.join()
    assert torch.UntypedStorage._expired(weak)
    for each in recorded:
        torch.UntypedStorage._free_weak_ref(each)


@pytest.mark.parametrize(
    ("reserved", "used", "given"),
    [(1 << 30, 1 << 29, True), (1 << 30, (1 << 30) - (128 << 20), False), (64 << 20, 0, False), (65 << 20, 0, True)],
)
def test_the_allocator_gives_much_that_is_unused_back_before_a_recording(monkeypatch, reserved, used, given):
    calls = []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: used)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(True))
    FakeDevice()._give_back_unused()
    assert bool(calls) == given


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2])
def test_types_that_torch_copies_one_at_a_time(recorder, dtype):
    """Inputs that move are copied in, results that callers keep are copied out."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]

    def program(inputs):
        return [(value.view(bits) + 1).view(dtype) for value in inputs]

    call, kept = recorder.wrap(program, "forward"), []
    for i in range(6):
        given = [torch.full((2, 3), n + i, dtype=bits).view(dtype) for n in (1, 20)]
        right = [value.view(bits) + 1 for value in given]
        kept.append((call(list(given)), right))
    for results, right in kept:
        assert all(torch.equal(result.view(bits), value) for result, value in zip(results, right, strict=True))


@pytest.mark.parametrize("function", [torch.linalg.eigh, torch.linalg.svd, torch.linalg.eigvals])
def test_a_decomposition_that_waits_for_the_gpu_is_never_tried(function):
    """cuSOLVER fails outside of recordings, too, after it was called inside of one."""

    def traced(x):
        return [value.real for value in function(x + 1) if isinstance(value, torch.Tensor)]

    found = []

    def look(gm, inputs):
        joint = trace_joint(gm, inputs, Options())
        found.append(_waiting_operator(joint.module.graph))
        return gm.forward

    compile(traced, backend=look)(torch.eye(3))
    assert found[0] is not None and found[0].startswith("aten::")


@pytest.mark.gpu
@pytest.mark.parametrize("function", [torch.linalg.eigh, torch.linalg.eigvalsh, torch.linalg.svdvals])
def test_decompositions_on_a_gpu(function):
    matrix = torch.randn(5, 5, device="cuda")
    matrix = matrix @ matrix.T
    call = compile(lambda x: function(x * 2))
    for _ in range(4):
        torch.testing.assert_close(call(matrix), function(matrix * 2), rtol=1e-3, atol=1e-3)
