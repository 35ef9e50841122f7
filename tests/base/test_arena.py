"""Places of buffers: those that live at the same time never overlap."""

from hypothesis import given
from hypothesis import strategies as st

from smelt.base.arena import ALIGN, place_buffers

LIVES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 400)), max_size=20)


@given(LIVES)
def test_live_buffers_do_not_overlap(drawn):
    drawn.sort()
    lives = [(first, first + length, -1) for first, length, _ in drawn]
    sizes = [size for *_, size in drawn]
    offsets, whole = place_buffers(lives, sizes)
    for i, (first, last, _) in enumerate(lives):
        assert offsets[i] % ALIGN == 0 and offsets[i] + sizes[i] <= whole
        for j in range(i):
            if lives[j][1] >= first and lives[j][0] <= last:
                assert offsets[i] >= offsets[j] + sizes[j] or offsets[j] >= offsets[i] + sizes[i]


def test_a_place_is_taken_over_and_freed_by_the_last():
    lives = [(0, 1, -1), (1, 3, 0), (2, 3, -1), (4, 5, -1)]
    offsets, whole = place_buffers(lives, [100, 100, 100, 200])
    assert offsets == [0, 0, 128, 0] and whole == 256
