# backend: aot_eager
# floats of whole numbers that only values tell: a product with a negative one may be -0.0
import torch


def program(v, n):
    k = (v > 9).sum().item()
    f = float(k)
    found = -f, f * -2.0, -1.0 * k, f // -2.0, f % -2.0, f * (f - 1.0), f * (k - 1), (k * 1.0) * -1, -0.0 + f, 0.0 - f
    m = n - 3
    return found, -float(m), m * -2.0, m // -2.0, m * (m - 1.0), -(m * 0.5), -1 * (m / 2)


entry = program


def calls():
    for n in (5, 3, 4, 3, 2):
        yield torch.arange(7.0), n
    yield torch.arange(12.0), 3
