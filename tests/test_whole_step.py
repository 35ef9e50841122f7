"""A training step as one graph: forward, loss, backward, clipping and optimizer; equal to eager's, step by step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt import driver, pipeline
from smelt.codegen.triton.host import render_triton

BACKENDS = ("eager", "aot_eager", "smelt")

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, weight_decay=0.01),
    "nadamw": lambda p: torch.optim.NAdam(p, lr=0.01, weight_decay=0.01, decoupled_weight_decay=True, foreach=False),
    "single": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "lion": lambda p: Lion(p),
}


class Lion(torch.optim.Optimizer):
    """As users write their own: in plain tensor operations, with state made in the first step."""

    def __init__(self, params, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                beta1, beta2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"].mul(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


def _model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def _batches(count):
    torch.manual_seed(1)
    return [(torch.randn(5, 8), torch.randint(0, 4, (5,))) for _ in range(count)]


def _train(make, backend, steps=4, scheduled=True, **how):
    model = _model()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if scheduled else None

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    run = step if backend is None else smelt.compile(step, backend=backend, **how)
    losses = []
    for x, y in _batches(steps):
        losses.append(run(x, y).detach().clone())
        if scheduler is not None:
            scheduler.step()
    return {
        "losses": losses,
        "parameters": [p.detach().clone() for p in model.parameters()],
        "gradients": [p.grad.clone() for p in model.parameters()],
        "state": optimizer.state_dict()["state"],
    }


def _close(a, b):
    torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_is_one_graph_and_equals_eager(name, backend):
    want = _train(OPTIMIZERS[name], None)
    smelt.reset()
    got = _train(OPTIMIZERS[name], backend, fullgraph=True)
    _close(got, want)
    # a custom optimizer makes its state in the first step, so that step is another program
    assert smelt.stats()["graphs"] == (2 if name == "lion" else 1)
    assert smelt.stats().get("breaks", 0) == 0


def test_eager_graph_of_a_step_gives_the_same_bits():
    want, got = _train(OPTIMIZERS["adamw"], None), _train(OPTIMIZERS["adamw"], "eager")
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_add_up_over_steps(backend):
    def run(compile):
        model = _model()
        step = compile(lambda x, y: F.cross_entropy(model(x), y).backward())
        for x, y in _batches(3):
            step(x, y)
        return [p.grad for p in model.parameters()]

    _close(run(lambda f: smelt.compile(f, backend=backend, fullgraph=True)), run(lambda f: f))


@pytest.mark.parametrize("backend", BACKENDS)
def test_accumulation_inside_one_step(backend):
    def run(compile):
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batches):
            total = 0.0
            for x, y in batches:
                loss = F.cross_entropy(model(x), y) / len(batches)
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            return total

        step = compile(step)
        totals = [step(_batches(2)), step(_batches(2))]
        assert all(p.grad is None for p in model.parameters())
        return totals, [p.detach() for p in model.parameters()]

    _close(run(lambda f: smelt.compile(f, backend=backend, fullgraph=True)), run(lambda f: f))


def test_gradients_that_only_feed_the_update_are_not_kept():
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    smelt.compile(step, backend=backend, fullgraph=True)(*_batches(1)[0])
    (output,) = [node for node in graphs[0].graph.nodes if node.op == "output"]
    assert output.args == ((),)


def test_clearing_gradients_needs_no_guard():
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @smelt.compile
    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()

    smelt.reset()
    for x, y in _batches(2):  # None before the first, tensors before the second
        step(x, y)
    assert smelt.stats()["graphs"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_closures_schedulers_and_gradients_set_to_zero(backend):
    def run(compile):
        model = _model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)

        def step(x, y):
            def closure():
                optimizer.zero_grad(set_to_none=False)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            loss = optimizer.step(closure)
            scheduler.step()
            return loss

        step = compile(step)
        losses = [step(x, y).detach() for x, y in _batches(4)]
        return (
            losses,
            [p.detach() for p in model.parameters()],
            scheduler.get_last_lr(),
            optimizer.param_groups[0]["lr"],
        )

    _close(run(lambda f: smelt.compile(f, backend=backend, fullgraph=True)), run(lambda f: f))


def test_optimizer_step_alone():
    def run(compile):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = compile(optimizer.step)
        for x, y in _batches(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            step()
        return [p.detach() for p in model.parameters()]

    want = run(lambda f: f)
    smelt.reset()
    _close(run(lambda f: smelt.compile(f, fullgraph=True)), want)
    assert smelt.stats()["graphs"] == 1


_VIEWS = {
    "rows": lambda y: y[1:],
    "flat": lambda y: y.view(-1),
    "transposed columns": lambda y: y.t()[::2],
    "no elements": lambda y: y[3:],
    "expanded": lambda y: y[:1].expand(4, 3),
}


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("view", _VIEWS)
def test_views_without_history_of_what_has_been_spent(view, write, backend):
    """They require gradients as their base does, and have no history."""

    def step(x):
        y = x.sin()
        y.sum().backward()
        with torch.no_grad():
            if write:
                y.mul_(2)
            v = _VIEWS[view](y)
        return y[1:] * 2, v, y

    compiled = smelt.compile(step, backend=backend)
    for _ in range(2):
        found = []
        for run in (step, compiled):
            x = torch.arange(9.0).view(3, 3).requires_grad_()
            _, v, y = run(x)
            facts = (v.requires_grad, v.is_leaf, v.stride(), v._is_view(), v.storage_offset(), y.is_leaf)
            found.append((v.detach(), y.detach(), x.grad, facts))
            with pytest.raises(RuntimeError, match="second time"):
                y.sum().backward()
        torch.testing.assert_close(found[1], found[0])


def test_the_loss_that_is_returned_has_been_spent():
    model = _model()

    @smelt.compile(fullgraph=True)
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    loss = step(*_batches(1)[0])
    assert loss.requires_grad and loss.grad_fn is not None
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_that_is_retained_serves_a_second_backward_outside(backend):
    def run(compile):
        model = _model()

        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward(retain_graph=True)
            return loss

        loss = compile(step)(*_batches(1)[0])
        loss.backward()
        return [p.grad for p in model.parameters()]

    _close(run(lambda f: smelt.compile(f, backend=backend, fullgraph=True)), run(lambda f: f))


def test_a_hook_on_a_parameter_is_part_of_the_graph():
    model, seen = _model(), []
    model[0].weight.register_hook(lambda grad: seen.append(grad.shape))

    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        return x + 1

    smelt.compile(step, fullgraph=True)(*_batches(1)[0])
    assert seen == [torch.Size([16, 8])]


def test_a_hook_that_comes_later_is_called():
    model, seen = _model(), []

    @smelt.compile
    def step(x, y):
        F.cross_entropy(model(x), y).backward()

    step(*_batches(1)[0])
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.shape))
    step(*_batches(1)[0])
    assert seen == [torch.Size([16, 8])]


def test_gradients_flow_on_to_what_came_before():
    model, before = _model(), nn.Linear(8, 8)

    @smelt.compile
    def step(x, y):
        F.cross_entropy(model(x), y).backward()

    x, y = _batches(1)[0]
    step(before(x), y)
    assert before.weight.grad is not None
    reference = copy.deepcopy(before)
    reference.zero_grad()
    other = _model()
    F.cross_entropy(other(reference(x)), y).backward()
    _close(before.weight.grad, reference.weight.grad)


def test_frozen_parameters_get_no_gradient():
    model = _model()
    model[0].requires_grad_(False)

    @smelt.compile(fullgraph=True)
    def step(x, y):
        F.cross_entropy(model(x), y).backward()

    step(*_batches(1)[0])
    assert [p.grad is None for p in model.parameters()] == [True, True, False, False, False, False]


def test_step_count_of_a_restored_optimizer():
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    @smelt.compile(fullgraph=True)
    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    smelt.reset()
    batches = _batches(3)
    step(*batches[0])
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    step(*batches[1])
    want = [p.detach().clone() for p in model.parameters()]
    step(*batches[2])
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    step(*batches[1])
    _close([p.detach() for p in model.parameters()], want)


def test_an_epoch_of_autocast_steps():
    def run(compile):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        step = compile(step)
        return [float(step(x, y).detach()) for x, y in _batches(4)]

    want = run(lambda f: f)
    got = run(lambda f: smelt.compile(f, fullgraph=True))
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=2e-2, atol=2e-2)


# -- updates in place --------------------------------------------------------------------------------------------------


def _embedding_step(optimizer_of, compile):
    torch.manual_seed(0)
    table, head = nn.Embedding(10, 8), nn.Linear(8, 4)
    parameters = [*table.parameters(), *head.parameters()]
    optimizer = optimizer_of(parameters)

    def step(ids, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(head(table(ids)), y)
        loss.backward()
        optimizer.step()
        return loss

    return compile(step), parameters, optimizer


def test_parameters_are_updated_where_they_are():
    step, parameters, _ = _embedding_step(lambda p: torch.optim.AdamW(p, lr=0.01), smelt.compile)
    where = [p.data_ptr() for p in parameters]
    versions = [p._version for p in parameters]
    for _ in range(2):
        step(torch.randint(0, 10, (6,)), torch.randint(0, 4, (6,)))
    assert [p.data_ptr() for p in parameters] == where
    assert all(now > before for now, before in zip((p._version for p in parameters), versions, strict=True))


def test_an_index_out_of_range_leaves_parameters_and_state_alone():
    step, parameters, optimizer = _embedding_step(
        lambda p: torch.optim.AdamW(p, lr=0.01), lambda f: smelt.compile(f, fullgraph=True)
    )
    good, y = torch.randint(0, 10, (6,)), torch.randint(0, 4, (6,))
    step(good, y)
    kept = copy.deepcopy(([p.detach() for p in parameters], optimizer.state_dict()["state"]))
    with pytest.raises(IndexError):
        step(torch.tensor([1, 2, 3, 4, 5, 10]), y)
    torch.testing.assert_close(
        ([p.detach() for p in parameters], optimizer.state_dict()["state"]), kept, rtol=0, atol=0
    )
    step(good, y)


def test_an_old_value_that_the_backward_needs_is_kept():
    running = torch.zeros(4)

    @smelt.compile(fullgraph=True)
    def fn(x):
        y = (x + running).sin()  # its gradient needs x + running, computed once more or kept
        running.add_(x.detach())
        return y

    x = torch.ones(4, requires_grad=True)
    fn(x)
    running.fill_(2.0)
    fn(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((4,), 3.0).cos())
    assert torch.equal(running, torch.full((4,), 3.0))


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_updates_of_all_parameters_share_launches_on_a_gpu(name, monkeypatch):
    pytest.importorskip("triton")
    rendered = []

    def render(*args):
        rendered.append(render_triton(*args))
        return rendered[-1]

    monkeypatch.setattr(pipeline, "render_triton", render)

    def train(compile):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(6 + n, 7 + n) for n in range(6)))
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = compile(step)
        losses = [run(torch.randn(3, 6, generator=torch.Generator().manual_seed(n))).detach() for n in range(3)]
        return losses, [p.detach() for p in model.parameters()], optimizer.state_dict()["state"]

    want = train(lambda step: step)
    _close(train(lambda step: smelt.compile(step, fullgraph=True, options={"target": "triton"})), want)
    bundles = [source for each in rendered for source in each.kernels if "def body" in source.source]
    members = [int(source.name.split()[-2]) + 1 for source in bundles]
    assert sum(members) >= 6 and len(bundles) <= 2  # those of biases follow the sums that are their gradients


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_step_keeps_no_more_than_a_model_and_its_backward(monkeypatch, target):
    """What waits for the backward is what a forward program would hand over; gradients end with the update."""
    plans, real = [], pipeline.schedule

    class Planned(BaseException):
        """Enough is known."""

    def schedule(*args, **kwargs):
        plans.append(real(*args, **kwargs))
        return plans[-1]

    def load(*args):
        raise Planned

    monkeypatch.setattr(pipeline, "schedule", schedule)
    monkeypatch.setattr(driver, "load", load)
    torch.manual_seed(0)
    block = [(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
    model = nn.Sequential(*(layer for each in block for layer in each))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4096, 64)

    def loss_of(compiled):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return compiled(x).square().mean()

    def step():
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    options = {"target": target}
    with pytest.raises(Planned):
        smelt.compile(step, options=options)()
    (whole,) = plans
    plans.clear()
    with pytest.raises(Planned):
        loss_of(smelt.compile(model, options=options))
    forward, backward = plans
    assert whole.needed <= 1.01 * max(forward.needed, backward.needed)


@pytest.mark.parametrize("own_layout", [False, True], ids=["as the parameter", "of its own"])
@pytest.mark.parametrize(
    "make",
    [torch.optim.Rprop, lambda p: torch.optim.SGD(p, momentum=0.9), torch.optim.Adam, torch.optim.Adagrad],
    ids=["Rprop", "SGD", "Adam", "Adagrad"],
)
def test_state_has_the_strides_that_eager_gives_it(make, own_layout):
    def steps(wrap):
        torch.manual_seed(0)
        weights = [torch.randn(4, 5).t(), torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)]
        parameters = [torch.nn.Parameter(w) for w in (*weights, torch.randn(6, 8)[:, ::2], torch.randn(()))]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        if own_layout:
            parameters[0].grad = torch.randn(5, 4)
            parameters[2].grad = torch.randn(4, 6).t()
        optimizer = make(parameters)
        step = wrap(optimizer.step)
        for _ in range(3):
            step()
        return [*parameters, *(v for p in parameters for v in optimizer.state[p].values() if torch.is_tensor(v))]

    for got, want in zip(steps(smelt.compile), steps(lambda f: f), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
