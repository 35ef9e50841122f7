"""Places of buffers: those that live at the same time never overlap."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.abi.arena import ALIGN, least_size, place_buffers, place_largest_first

LIVES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 400)), max_size=20)


@pytest.mark.parametrize("place", [place_buffers, place_largest_first])
@given(drawn=LIVES)
def test_live_buffers_do_not_overlap(place, drawn):
    drawn.sort()
    lives = [(first, first + length, -1) for first, length, _ in drawn]
    sizes = [size for *_, size in drawn]
    offsets, whole = place(lives, sizes)
    assert whole >= least_size(lives, sizes)
    for i, (first, last, _) in enumerate(lives):
        assert offsets[i] % ALIGN == 0 and offsets[i] + sizes[i] <= whole
        for j in range(i):
            if lives[j][1] >= first and lives[j][0] <= last:
                assert offsets[i] >= offsets[j] + sizes[j] or offsets[j] >= offsets[i] + sizes[i]


def test_a_busy_machine_is_no_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where drawing took long, as beside other work, hypothesis failed the test above (`too_slow`, a deadline)."""
    began, clock, drawn = time.perf_counter(), time.perf_counter, []
    monkeypatch.setattr(time, "perf_counter", lambda: began + 3000 * (clock() - began))

    @settings(max_examples=12, database=None)
    @given(LIVES)
    def draws(lives: list[tuple[int, int, int]]) -> None:
        drawn.append(lives)

    draws()
    assert len(drawn) >= 12


@pytest.mark.parametrize("place", [place_buffers, place_largest_first])
def test_a_slot_is_taken_over_and_freed_by_the_last_owner(place):
    lives = [(0, 1, -1), (1, 3, 0), (2, 3, -1), (4, 5, -1)]
    offsets, whole = place(lives, [100, 100, 100, 200])
    assert offsets == [0, 0, 128, 0] and whole == 256 == least_size(lives, [100, 100, 100, 200])


def test_a_large_buffer_does_not_end_after_a_small_one():
    lives = [(0, 0, -1), (0, 9, -1), (1, 9, -1), (2, 3, -1)]
    sizes = [6400, 64, 64, 6400]
    assert place_buffers(lives, sizes)[1] == 2 * 6400 + 64
    assert place_largest_first(lives, sizes) == ([0, 6400, 6464, 0], 6528)
    assert least_size(lives, sizes) == 6528


def test_a_buffer_can_be_fixed_at_offset_0() -> None:
    lives, sizes = [(0, 2, -1), (1, 4, -1), (3, 5, -1)], [64, 640, 6400]
    assert place_largest_first(lives, sizes) == ([0, 6400, 0], 7040)
    assert place_largest_first(lives, sizes, leading=[0])[0][0] == 0
    assert place_largest_first(lives, sizes, leading=[1]) == ([640, 0, 640], 7040)
    assert place_largest_first(lives, sizes, leading=[0, 1])[0] == [0, 64, 704]
