# Whether gradients are on is decided by a number that a tensor tells.
import torch


def entry(x, v):
    with torch.set_grad_enabled(v.argmax().item() < 3):
        y = x * 2
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(v.argmax().item() > 1)
    z = x + 1
    torch.set_grad_enabled(before)
    with torch.autocast("cpu", enabled=v.argmax().item() > 2):
        w = x[:, None] @ x[None]
    return y, y.requires_grad, z, z.requires_grad, w.dtype


def calls():
    for scale in (1.0, -1.0, 0.0):
        yield (torch.linspace(-1.0, 3.0, 3).requires_grad_(), scale * torch.arange(4.0))
