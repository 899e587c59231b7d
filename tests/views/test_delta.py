"""The rules for changes: equal to recomputation, for random plans and random changes."""

from assertions import examples
from hypothesis import given, settings
from plans import changed_plans

from timespine.testing.views import Versions, minus
from timespine.views.plan.algebra import Delta
from timespine.views.plan.delta import NEW, OLD


@settings(max_examples=examples(150), deadline=None)
@given(changed_plans())
def test_the_change_of_a_plan_is_what_recomputing_it_changes(case):
    plan, old, new = case
    world = Versions(old, new)
    assert world.evaluate(Delta(plan)) == minus(world.at(plan, NEW), world.at(plan, OLD))
