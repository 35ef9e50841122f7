# A constant that is indexed, after a break, makes no warning of residual code.
from torch import nn


class Layer(nn.Module):
    pass


class Model(Layer):
    def forward(self, t1, t2, point3):
        try:
            for n7 in 1[0]:
                pass
        except TypeError:
            MODULE.extra = nn.Linear(3, 3, bias=False)


entry = Model()


def calls():
    shared = 1
    yield (shared, shared, 1)
