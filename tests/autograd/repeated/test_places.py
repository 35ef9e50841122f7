"""Where the values of blocks are found in a prim graph."""

from __future__ import annotations

from smelt.autograd.repeated.places import Part


def test_places_of_a_forward_count_up_and_those_of_a_backward_down() -> None:
    forward, backward = Part("from", 10, 13), Part("of", 43, 40)
    assert [forward.place(at) for at in (8, 10, 12, 13, 17)] == [
        (("from", 1), 0),
        (("from", 0), 1),
        (("from", 2), 1),
        (("from", 0), 2),
        (("from", 1), 3),
    ]
    assert [backward.place(at) for at in (38, 40, 42, 43, 46)] == [
        (("of", 1), 3),
        (("of", 0), 2),
        (("of", 2), 2),
        (("of", 0), 1),
        (("of", 0), 0),
    ]
    assert forward.size == backward.size == 3
