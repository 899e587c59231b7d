"""Planted bugs of views, which histories of views are to notice: see `planted.py`."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from mutations import bug, in_views, patched

from timespine.client.api_for_engines import view_hold_name
from timespine.client.catalog.drop_and_purge import DropService
from timespine.client.store import Store
from timespine.client.write.transaction import RefreshTransaction, Transaction
from timespine.core.transitions import AdvanceUpper, CompareAndDowngrade, RegisterHold
from timespine.errors import LateRows, UpperMismatch
from timespine.model.frontier import Frontier
from timespine.views import compute_changes, rebuild, registry
from timespine.views.engine import accumulators
from timespine.views.engine.evaluate import Evaluator
from timespine.views.engine.store_source import InputReader
from timespine.views.engine.touched_rows import TouchedRows
from timespine.views.every import timed_evaluate
from timespine.views.every.timed_rows import TIME, sum_timed
from timespine.views.plan import delta
from timespine.views.plan.algebra import At, Delta, Join, Union
from timespine.views.plan.delta import NEW
from timespine.views.refresh import refresh_one_view, refresh_views
from timespine.views.refresh.left_out_views import LeftOutViews
from timespine.views.sql import subqueries
from timespine.views.view import first_time

# Committing.


@in_views
@bug
def holds_move_before_the_commit() -> Iterator[None]:
    real = refresh_views._commit

    def commit(store, works, time):
        for work in works:
            for handle in work.inputs.values():
                token, name = work.definition.token, view_hold_name(work.id)
                if name in handle.known().holds:
                    handle.committer.commit((handle.id, CompareAndDowngrade(name, token, token, Frontier.at(time))))
        real(store, works, time)

    with patched(refresh_views, "_commit", commit):
        yield


@in_views
@bug
def sealing_idle_collections_seals_views() -> Iterator[None]:
    real = Store.seal_idle

    def seal_idle(self, upper=None):
        time_ms = real(self, upper)
        views = [entry for entry in self._catalog.read().entries.values() if entry.role and entry.timeline == "clock"]
        for entry in views:
            self._committer.commit((entry.id, AdvanceUpper(Frontier.at(time_ms))))
        return time_ms

    with patched(Store, "seal_idle", seal_idle):
        yield


@in_views
@bug
def a_refresh_does_not_expect_the_uppers_that_it_was_computed_from() -> Iterator[None]:
    real = Transaction.expect

    def expect(self, collection, upper):
        if not self._refreshes:
            real(self, collection, upper)

    with patched(Transaction, "expect", expect):
        yield


@in_views
@bug
def stages_are_committed_without_their_view() -> Iterator[None]:
    real = refresh_views._commit

    def commit(store, works, time):
        for work in works:
            work.stages, stages = [], work.stages
            with registry.begin_refresh(store) as transaction:
                for stage, rows in zip(stages, work.changes.stages, strict=False):
                    collection = store.collection(stage.name)
                    transaction.expect(collection, work.before + 1)
                    if len(rows):
                        _, schema = stage.schema(stage.known())
                        transaction.append(
                            collection, compute_changes.update_rows(rows, schema), at=time, upper=time + 1
                        )
                    else:
                        transaction.seal(collection, time + 1)
        real(store, works, time)

    with patched(refresh_views, "_commit", commit):
        yield


@in_views
@bug
def views_are_committed_one_by_one() -> Iterator[None]:
    real = refresh_views._commit

    def commit(store, works, time):
        for work in works:
            real(store, [work], time)

    with patched(refresh_views, "_commit", commit):
        yield


@in_views
@bug
def a_refresh_that_lost_says_that_it_was_done() -> Iterator[None]:
    real = refresh_views._commit

    def commit(store, works, time):
        try:
            real(store, works, time)
        except (UpperMismatch, LateRows):
            return

    with patched(refresh_views, "_commit", commit):
        yield


@in_views
@bug
def a_refresh_that_comes_late_fails() -> Iterator[None]:
    real = refresh_views._commit

    def commit(store, works, time):
        try:
            real(store, works, time)
        except UpperMismatch as error:
            raise LateRows(str(error), None, None) from None

    def line(store, look, names, through, spark, engine, *, is_all):
        left = LeftOutViews(is_all)
        works = left.remaining(refresh_views._ordered(refresh_views._works(store, look, names, left)))
        time = refresh_views._common_time(look, works, through, left)
        refresh_views._catch_up(look, works, time, left)
        done = refresh_views._refresh_once(store, left.remaining(works), time, spark, engine, left)
        return done | refresh_views._left_where_they_are(look, left)

    with patched(refresh_views, "_commit", commit), patched(refresh_views, "_refresh_line", line):
        yield


# Times.


@in_views
@bug
def changes_are_those_since_a_stale_time() -> Iterator[None]:
    real, shared = InputReader.changes, TouchedRows.changes

    def from_stale(rows, call):
        before, since = rows.before, rows.handle.state().since
        rows.before = max(before - 1, since.time if since.elements else 0, 0)
        try:
            return call()
        finally:
            rows.before = before

    def changes(self, columns):
        return from_stale(self, lambda: real(self, columns))

    def shared_changes(self):
        return from_stale(self, lambda: shared(self))

    with patched(InputReader, "changes", changes), patched(TouchedRows, "changes", shared_changes):
        yield


@in_views
@bug
def a_view_on_views_misses_what_is_not_stored_yet() -> Iterator[None]:
    real = InputReader._pending

    def pending(self, columns):
        return real(self, columns).clear()

    with patched(InputReader, "_pending", pending):
        yield


# Inputs.


@in_views
@bug
def a_view_holds_nothing_of_its_inputs() -> Iterator[None]:
    real = RefreshTransaction.also

    def also(self, collection, command):
        if not isinstance(command, RegisterHold):
            real(self, collection, command)

    with patched(RefreshTransaction, "also", also):
        yield


@in_views
@bug
def an_input_of_a_view_can_be_dropped() -> Iterator[None]:
    def check_unheld(self, name, id, hint):
        return None

    with patched(DropService, "check_unheld", check_unheld):
        yield


@in_views
@bug
def a_dropped_view_keeps_its_holds() -> Iterator[None]:
    def release(store, view, definition, there):
        return None

    with patched(registry, "_release", release):
        yield


# Rules.


@in_views
@bug
def a_term_reads_the_rows_after_where_those_before_belong() -> Iterator[None]:
    real = delta._join_rule

    def rule(node):
        made = real(node)
        if node.kind != "inner":
            return made
        first = Join("inner", Delta(node.left), At(node.right, NEW), node.keys, node.condition)
        return Union((first, made.children[1]))

    with patched(delta, "_join_rule", rule):
        yield


@in_views
@bug
def rows_whose_match_comes_or_goes_are_forgotten() -> Iterator[None]:
    real = delta._join_rule

    def rule(node):
        return real(node) if node.kind == "inner" else real(node).children[0]

    with patched(delta, "_join_rule", rule):
        yield


@in_views
@bug
def a_count_over_no_rows_is_not_zero() -> Iterator[None]:
    def rejects_null(node, value, whole):
        return True

    with patched(subqueries, "_rejects_null", rejects_null):
        yield


@in_views
@bug
def a_sum_of_nulls_alone_is_zero() -> Iterator[None]:
    real = accumulators._shown

    def shown(call, place):
        return pl.col(f"sum{place}") if call.function == "sum" else real(call, place)

    with patched(accumulators, "_shown", shown):
        yield


@in_views
@bug
def a_least_value_that_was_retracted_stays() -> Iterator[None]:
    real = accumulators.Grouping.fold

    def fold(self, old, changes, retracted):
        return real(self, old, changes, retracted.clear() if self.keys else retracted.clear(1))

    with patched(accumulators.Grouping, "fold", fold):
        yield


@in_views
@bug
def a_group_without_rows_stays() -> Iterator[None]:
    real = accumulators.Grouping.fold

    def fold(self, old, changes, retracted):
        new, again = real(self, old, changes, retracted)
        gone = old.join(new, on=self.keys, how="anti", nulls_equal=True) if self.keys else new.clear()
        return pl.concat([new, gone.select(new.columns)]), again

    with patched(accumulators.Grouping, "fold", fold):
        yield


@in_views
@bug
def changes_of_groups_are_read_from_the_stage_alone() -> Iterator[None]:
    real = Evaluator._groups

    def groups(self, node, version, keys):
        return real(self, node, "old" if self._source.groups(node, None) is not None else version, keys)

    with patched(Evaluator, "_groups", groups):
        yield


# Rebuilding, and views that are exact at every time.


@in_views
@bug
def a_rebuild_keeps_the_definition_of_the_old_stages() -> Iterator[None]:
    def replace_definition(transaction, view, old, new):
        return True

    with patched(rebuild, "replace_definition", replace_definition):
        yield


@in_views
@bug
def a_view_at_every_time_changes_at_the_last_one() -> Iterator[None]:
    real = refresh_one_view.compute_timed

    def compute_timed(compiled, source, before):
        made = real(compiled, source, before)
        made.view = sum_timed(made.view.with_columns(pl.col(TIME).max()))
        return made

    with patched(refresh_one_view, "compute_timed", compute_timed):
        yield


@in_views
@bug
def a_rebuild_skips_times() -> Iterator[None]:
    def rebuild_time(made, handles, before):
        return first_time(handles)

    with patched(rebuild, "_rebuild_time", rebuild_time):
        yield


@in_views
@bug
def a_rebuild_leaves_its_old_stages_open() -> Iterator[None]:
    def catalog_entries(store):
        return {}

    with patched(rebuild, "catalog_entries", catalog_entries):
        yield


@in_views
@bug
def a_pair_has_the_earlier_time_of_its_rows() -> Iterator[None]:
    real = timed_evaluate.TimedEvaluator._pairs

    def pairs(self, plan, left, right):
        if TIME not in left.columns or TIME not in right.columns:
            return real(self, plan, left, right)
        turned = [each.with_columns(-pl.col(TIME)) for each in (left, right)]  # the larger one is the earlier one
        return real(self, plan, *turned).with_columns(-pl.col(TIME))

    with patched(timed_evaluate.TimedEvaluator, "_pairs", pairs):
        yield
