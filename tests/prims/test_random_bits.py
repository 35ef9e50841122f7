"""The generator: fixed values, range, independence of streams, seeds and neighbours."""

import torch

from smelt.prims.random_bits import random_words, uniform


def seed(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64)


def test_values_depend_only_on_seed_stream_and_index():
    a = uniform(seed(3), 1, (4, 8))
    assert torch.equal(a.flatten(), uniform(seed(3), 1, (64,))[:32])
    assert not torch.equal(a, uniform(seed(4), 1, (4, 8)))
    assert not torch.equal(a, uniform(seed(3), 2, (4, 8)))


def test_scalar_python_version_agrees():
    mask32, mask64 = (1 << 32) - 1, (1 << 64) - 1

    def mix(w: int) -> int:
        w = ((w ^ w >> 16) * 0x7FEB352D) & mask32
        w = ((w ^ w >> 15) * 0x846CA68B) & mask32
        return w ^ w >> 16

    z = (-5 + 0x9E3779B97F4A7C15 * 8) & mask64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask64
    z ^= z >> 31
    expect = [mix((mix((i + z) & mask32) + (z >> 32)) & mask32) for i in range(20)]
    assert random_words(seed(-5), 7, 20).tolist() == expect


def test_distribution():
    n = 1 << 20
    x = uniform(seed(11), 0, (n,))
    assert float(x.min()) >= 0 and float(x.max()) < 1
    counts = torch.histc(x, 256, 0, 1)
    chi = float(((counts - n / 256) ** 2 / (n / 256)).sum())
    assert 255 - 5 * 22.6 < chi < 255 + 5 * 22.6
    for y in (uniform(seed(11), 1, (n,)), uniform(seed(12), 0, (n,)), x.roll(1), x.roll(768)):
        assert abs(float(torch.corrcoef(torch.stack([x, y]))[0, 1])) < 5 / n**0.5


def test_every_bit_is_fair():
    words = random_words(seed(0), 0, 1 << 18)
    for bit in range(32):
        share = float(((words >> bit) & 1).double().mean())
        assert abs(share - 0.5) < 5 * 0.5 / 2**9
