"""`pytest --share`: the part of a matrix that CI runs."""

from __future__ import annotations

from drawing import FEWEST, drawn

NAMES = [f"test_programs[{n}]" for n in range(50)]


def test_a_share_of_many_cases():
    assert len(drawn(NAMES, 0.4, "1")) == 20
    assert len(drawn(NAMES[:FEWEST], 0.01, "1")) == FEWEST
    assert drawn(NAMES[:1], 0.4, "1") == {NAMES[0]}


def test_one_seed_draws_the_same_cases_in_any_order_and_others_draw_the_rest():
    assert drawn(NAMES, 0.4, "1") == drawn(NAMES[::-1], 0.4, "1")
    assert set().union(*(drawn(NAMES, 0.4, str(seed)) for seed in range(30))) == set(NAMES)
