# backend: eager
import numpy
import torch

G_TENSOR = torch.ones(2, 3)


def program(t1, flag2, t3):
    n5, s6 = ("key", 1)

    def inner22(t23=1):
        t23.mul_(t23)

        def inner25(t26=1):

            def f27(p28, a29=n5, *r30, k31=1, **n32):
                pass

            t38 = f27(t23, 1, **{**dict(a=1, key=2), s6: n5})

        t40 = inner25(G_TENSOR)

    t41 = inner22(G_TENSOR)
    with 1:
        pass


entry = program


def calls():
    yield (1, True, 1)
