"""Training through recorded programs equals eager, whatever is kept, called again and accumulated."""

import copy
import random

import pytest
import torch

import smelt
import smelt.driver
from smelt.autograd.call.calling_convention import wrap
from smelt.capture.torch.escapes import graph_break
from smelt.runtime.cuda.graphs import Recorder
from tests.runtime.fake_device import FakeDevice


@pytest.fixture(params=["told", "untold"])
def recorders(request, monkeypatch):
    """The recorders of all graphs; their programs learn what is written and visible, or find out."""
    found, device = [], FakeDevice()
    device.block = torch.zeros(1 << 16, dtype=torch.uint8)

    def recorded(joint, forward, backward, again=None):
        recorder = Recorder(torch.device("cpu"), name=f"graph {len(found)}", backend=device)
        found.append(recorder)
        told = request.param == "told"
        about = {"written": [m.input for m in joint.mutations], "visible": joint.num_forward} if told else {}
        forward = recorder.wrap(forward, "forward", **about)
        if backward is not None:
            backward = recorder.wrap(backward, "backward", **({"written": [], "visible": 0} if told else {}))
        return wrap(joint, forward, backward, again)

    monkeypatch.setattr(smelt.driver, "wrap", recorded)
    return found


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = (
            torch.nn.Linear(6, 8, bias=False),
            torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 3),
        )

    def forward(self, x):
        hidden = torch.relu(self.norm(self.first(x)))
        return self.last(hidden), hidden.t()


def pair():
    eager = Net().double()
    model = copy.deepcopy(eager)
    return eager, model, smelt.compile(model)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def equal_state(eager, model):
    for p, q in zip(eager.parameters(), model.parameters(), strict=True):
        same(p, q)
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            same(p.grad, q.grad)
    for p, q in zip(eager.buffers(), model.buffers(), strict=True):
        same(p, q)


def made(recorders):
    return {program.name: program.made for recorder in recorders for program in recorder.programs}


@pytest.mark.parametrize("zero", ["before, none", "after, none", "before, zero", "after, zero"])
def test_a_training_loop_as_people_write_it(recorders, zero):
    when, how = zero.split(", ")
    eager, model, compiled = pair()
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (eager, model)]
    kept = [None, None]  # the results of the last iteration are alive in the next one
    for _ in range(12):
        x, target = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
        losses = []
        for i, (call, optimizer) in enumerate(zip((eager, compiled), optimizers, strict=True)):
            if when == "before":
                optimizer.zero_grad(set_to_none=how == "none")
            kept[i] = out, hidden = call(x)
            if when == "after":
                optimizer.zero_grad(set_to_none=how == "none")
            loss = torch.nn.functional.mse_loss(out, target)
            losses.append(loss.detach())
            loss.backward()
            optimizer.step()
        same(losses[0], losses[1])
        equal_state(eager, model)
    (recorder,) = recorders
    forward, backward = recorder.programs
    # The backward reads `hidden` where its view is held: who is not told that it is visible finds out a call later.
    assert forward.made <= 2 and forward.replays >= 9, recorder.reasons()
    assert backward.made <= 2 and backward.replays >= 6, recorder.reasons()


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_a_whole_step_whose_rate_changes(recorders, make):
    """Rates and corrections of the step count are tensors of each call, not what was recorded."""
    eager, model, _ = pair()
    steps, schedulers = [], []
    for net, compile in ((eager, lambda step: step), (model, smelt.compile)):
        optimizer = make(net.parameters(), lr=0.05, weight_decay=0.1)
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7))

        def step(x, net=net, optimizer=optimizer):
            out, hidden = net(x)
            loss = out.square().mean() + hidden.mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        steps.append(compile(step))
    for _ in range(10):
        x = torch.randn(5, 6, dtype=torch.float64)
        losses = [step(x) for step in steps]
        same(*losses)
        equal_state(eager, model)
        for scheduler in schedulers:
            scheduler.step()
    programs = [program for recorder in recorders for program in recorder.programs]
    assert programs[-1].made <= 2 and programs[-1].replays >= 6, recorders[-1].reasons()


def test_several_forwards_before_one_backward(recorders):
    eager, model, compiled = pair()
    for _ in range(10):
        xs = [torch.randn(5, 6, dtype=torch.float64) for _ in range(3)]
        for call in (eager, compiled):
            total = 0
            for x in xs:
                out, hidden = call(x)
                total = total + out.sum() + (hidden**2).sum()
            total.backward()
        equal_state(eager, model)
    (recorder,) = recorders
    assert recorder.programs[0].made <= 8


def test_backward_twice(recorders):
    eager, model, compiled = pair()
    kept = []
    for step in range(8):
        x = torch.randn(5, 6, dtype=torch.float64)
        results = []
        for call, module in ((eager, eager), (compiled, model)):
            out, hidden = call(x)
            loss = out.square().sum()
            first = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
            second = torch.autograd.grad(loss, list(module.parameters()), retain_graph=step % 2 == 0)
            results.append((first, second, [t.clone() for t in first]))
        for (wanted, again, _), (got, twice, cloned) in zip(results[:1], results[1:], strict=True):
            for a, b, c, d, e in zip(wanted, again, got, twice, cloned, strict=True):
                same(a, c)
                same(b, d)
                assert torch.equal(c, e)
        kept.append(results[1])
    for first, _, cloned in kept:
        assert all(torch.equal(a, b) for a, b in zip(first, cloned, strict=True))


def test_graph_breaks_chain_regions(recorders):
    def function(x, w):
        y = torch.tanh(x @ w)
        graph_break()
        return (y @ w.t()).sum()

    w = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    compiled = smelt.compile(function)
    for _ in range(8):
        x = torch.randn(3, 4, dtype=torch.float64)
        w.grad = None
        wanted = function(x, w)
        wanted.backward()
        grad, w.grad = w.grad, None
        got = compiled(x, w)
        got.backward()
        same(got, wanted)
        same(w.grad, grad)
    assert len(recorders) == 2
    second = recorders[1].programs[0]
    assert all(0 not in r.moving for r in second.recordings)  # the first region's result stays where it is


class _Run:
    """A random user: the same sequence of calls on two models; everything that is kept is compared at the end."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.eager, self.model, self.compiled = pair()
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (self.eager, self.model)]
        self.open = []  # outputs with a history
        self.kept = []  # pairs of tensors, and what they were

    def keep(self, wanted, got):
        self.kept.append((wanted, got, got.detach().clone()))

    def forward(self):
        x = torch.randn(self.random.choice((4, 4, 4, 5)), 6, dtype=torch.float64)
        results = [call(x) for call in (self.eager, self.compiled)]
        for wanted, got in zip(*results, strict=True):
            same(wanted, got)
            if self.random.random() < 0.3:
                self.keep(wanted.detach()[1:], got.detach()[1:])
        self.open.append(results)

    def no_grad(self):
        with torch.no_grad():
            x = torch.randn(4, 6, dtype=torch.float64)
            for wanted, got in zip(self.eager(x), self.compiled(x), strict=True):
                same(wanted, got)
                self.keep(wanted, got)

    def backward(self):
        if not self.open:
            return
        retain = self.random.random() < 0.3
        results = self.open[-1] if retain else self.open.pop(self.random.randrange(len(self.open)))
        use = self.random.random() < 0.5
        for outputs in results:
            (outputs[0].sum() + (outputs[1].square().sum() if use else 0)).backward(retain_graph=retain)
        equal_state(self.eager, self.model)

    def step(self):
        self.open.clear()  # what they saved is written over
        for optimizer in self.optimizers:
            optimizer.step()

    def zero(self):
        none = self.random.random() < 0.5
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=none)

    def keep_gradients(self):
        for p, q in zip(self.eager.parameters(), self.model.parameters(), strict=True):
            if p.grad is not None:
                self.keep(p.grad.clone(), q.grad)
                p.grad = q.grad = None

    def write_to_output(self):
        with torch.no_grad():
            x = torch.randn(4, 6, dtype=torch.float64)
            (wanted, _), (got, _) = self.eager(x), self.compiled(x)
            self.keep(wanted.add_(1), got.add_(1))

    def forget(self):
        self.random.shuffle(self.kept)
        del self.kept[3:]
        if self.open:
            self.open.pop(0)

    def go(self, steps):
        actions = [self.forward] * 4 + [self.backward] * 4 + [self.no_grad, self.step, self.zero, self.zero]
        actions += [self.keep_gradients, self.write_to_output, self.forget, self.forget]
        for _ in range(steps):
            self.random.choice(actions)()
            for wanted, got, was in self.kept:
                assert torch.equal(got, was)
                same(wanted, got)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore::smelt.base.errors.SmeltWarning")
def test_random_users(recorders, seed):
    _Run(seed).go(120)
    assert sum(program.replays for recorder in recorders for program in recorder.programs) > 10
