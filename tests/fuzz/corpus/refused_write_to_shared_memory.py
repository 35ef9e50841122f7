# A write that does not fit is refused with eager's words: of arguments that share memory these are about the memory.
import torch


def entry(a, b):
    c = a + 1
    try:
        b.copy_(a)
    except RuntimeError as error:
        return c, str(error)
    return c, a + b


def calls():
    yield (torch.arange(3.0), torch.arange(4.0))
    base = torch.arange(8.0)
    yield (base[:3], base[2:6])
    yield (base[:3], base[4:])
    yield (torch.arange(3.0), torch.arange(4.0))
    yield (base[:3], base[2:6])
    yield (base[:4], base[2:6])
    yield (base[:3], base[5:])
