"""Views that are left out of a refresh with those that read them, however long the chain is."""

from types import SimpleNamespace

import pytest

from timespine.views.refresh.left_out_views import LeftOutViews


@pytest.mark.parametrize("backwards", [False, True])
def test_a_long_chain_of_views_is_left_out_whole(backwards):
    count = 1500 if not backwards else 200
    inputs = [SimpleNamespace(inputs=[SimpleNamespace(id=f"i{at - 1}")]) for at in range(count)]
    works = [SimpleNamespace(name=f"v{at}", id=f"i{at}", definition=each) for at, each in enumerate(inputs)]
    other = SimpleNamespace(name="other", id="o", definition=SimpleNamespace(inputs=[SimpleNamespace(id="a")]))
    left = LeftOutViews(True)
    left._add("bad", "i-1", "view bad: it failed")
    given = [*works, other]
    assert left.remaining(given[::-1] if backwards else given) == [other]
    assert left.errors.keys() == {"bad", *(each.name for each in works)}
    assert left.errors["v7"] == "view v7 was not refreshed, because its input v6 was not"
