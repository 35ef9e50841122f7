# Variables without a value raise what Python raises, word by word.
import torch


def entry(x, flag):
    if flag:
        local, cell = 1, 2

    def inner():
        return cell

    for run in (lambda: inner(), lambda: cell):
        try:
            run()
        except NameError as error:
            print(type(error).__name__, error)
    try:
        print(local)
    except UnboundLocalError as error:
        print(error)
    try:
        del local
        print(local)
    except UnboundLocalError as error:
        print(error)
    return x + 1


def calls():
    yield torch.ones(2), True
    yield torch.ones(2), False
