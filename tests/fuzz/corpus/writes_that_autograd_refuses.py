# Eager refuses to write to some views of arguments, after what the function did before.
import torch

SEEN = []


def entry(x, y):
    SEEN.append("begun")
    y.mul_(2)
    try:
        x.view(-1)[0] = 1
    except RuntimeError as error:
        SEEN.append(str(error))
    x += x
    return x


def _leaf():
    return torch.ones(2, 3, requires_grad=True)


def _without_gradients():
    with torch.no_grad():
        return _leaf().unbind(0)


def calls():
    yield _leaf() * 2, torch.ones(3)
    yield _leaf()[0], torch.ones(3)
    yield _leaf().unbind(0)[0], torch.ones(3)
    yield (_leaf() * 2).unbind(0)[0], torch.ones(3)
    yield _without_gradients()[1], torch.ones(3)
    yield (_leaf() * 2)[0], torch.ones(3)
    with torch.inference_mode():
        held = torch.ones(3)
    yield held, torch.ones(3)
