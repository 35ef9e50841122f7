# backend: aot_eager
# an operation raises for the sizes that values tell, and the program catches the error
import torch


class Manager:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        print("leave")
        return False


def program(v):
    k = int((v > 2.5).sum())
    part = v.softmax(0)[:k]
    try:
        v.add_(0.001)
        n = int((part[v > 0.001] > 0.001).sum())
    except (KeyError, IndexError) as e:
        n = type(e).__name__
    try:
        with Manager():
            torch._check(k == 3, lambda: "three")
    except RuntimeError as e:
        n = n, str(e)
    finally:
        print("done")
    return n, part + 1


entry = program


def calls():
    yield (torch.arange(7.0) - 3,)
    yield (torch.arange(7.0),)
    yield (torch.arange(3.0) + 3,)
