import torch

STREAM = iter(range(5))


def entry(t, n):
    kept = 1
    for k in [0]:
        for _ in range(2):
            t.sum().item()
            try:
                del k
                print("deleted")
            except UnboundLocalError as error:
                print(error)
    for _ in STREAM:
        if t.dim() > 1:
            del kept
    return n


def calls():
    yield (torch.ones(2, 3), 0)
    yield (torch.ones(2, 3), 0)
    yield (torch.ones(3), 0)
