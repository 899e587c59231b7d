"""Planted bugs of the columnar layer, which histories with real rows are to notice: see `planted.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
from mutations import (
    bug,
    in_stores,
    on_real_storage,
    patched,
    patched_everywhere,
)

from timespine.columnar.ingest import update_table
from timespine.columnar.merge import merge_plan as stretches_module
from timespine.columnar.merge import run_merge, split_past
from timespine.columnar.scan import part_access, settled_run_with_changes, visibility
from timespine.columnar.scan import prune as prune_module
from timespine.core.batch import Order, Part, Run


@on_real_storage
@bug
def a_part_is_passed_through_although_another_one_overlaps_it() -> Iterator[None]:
    def overlapping(pieces):
        for piece in sorted(pieces, key=lambda piece: piece.lower):
            yield [piece], piece.lower, piece.upper

    with patched(stretches_module, "_group_overlapping", overlapping):
        yield


@on_real_storage
@bug
def a_part_is_passed_through_as_if_it_were_whole() -> Iterator[None]:
    real_may, real_pass = run_merge.RunMerge._may_pass, run_merge.RunMerge._pass

    def may_pass(self, piece):
        return real_may(self, replace(piece, part=_whole(piece.part)))

    def pass_(self, output, piece):
        real_pass(self, output, replace(piece, part=_whole(piece.part)))

    with patched(run_merge.RunMerge, "_may_pass", may_pass), patched(run_merge.RunMerge, "_pass", pass_):
        yield


@on_real_storage
@bug
def the_update_after_the_last_zero_of_a_row_is_taken_for_past() -> Iterator[None]:
    real = split_past._past

    def past(diffs, repeats):
        found = real(diffs, repeats)
        if found is not None:
            found[1:] |= found[:-1] & repeats[1:]
        return found

    with patched(split_past, "_past", past):
        yield


@on_real_storage
@bug
def the_past_is_dropped_before_it_is_expired() -> Iterator[None]:
    with patched(run_merge.RunMerge, "_is_expired", lambda self, stretch: not stretch.tables):
        yield


@on_real_storage
@bug
def a_merge_forgets_that_times_are_rewritten() -> Iterator[None]:
    real = visibility.apply_visibility

    def seen(table, part, window, arity):
        if window.since is not None:
            part = msgspec.structs.replace(part, rewrite=None)
        return real(table, part, window, arity)

    with patched_everywhere(real, seen):
        yield


@on_real_storage
@bug
def a_merge_advances_times_before_it_looks_at_bounds() -> Iterator[None]:
    real = visibility.apply_visibility

    def seen(table, part, window, arity):
        if window.since is None:
            return real(table, part, window, arity)
        advanced = real(table, Part("", 0), window, arity)
        return real(advanced, part, window, arity)

    with patched_everywhere(real, seen):
        yield


@on_real_storage
@bug
def the_truncation_of_inline_data_is_ignored() -> Iterator[None]:
    real = visibility.apply_visibility

    def seen(table, part, window, arity):
        if part.inline is not None:
            part = msgspec.structs.replace(part, lower=None, upper=None)
        return real(table, part, window, arity)

    with patched_everywhere(real, seen):
        yield


@on_real_storage
@bug
def parts_are_skipped_by_times_that_were_rewritten_since() -> Iterator[None]:
    real = prune_module.Pruner._times_may_match

    def may_match(self, part, meta):
        return real(self, msgspec.structs.replace(part, rewrite=None), meta)

    with patched(prune_module.Pruner, "_times_may_match", may_match):
        yield


@on_real_storage
@bug
def the_page_beside_the_wanted_one_is_read() -> Iterator[None]:
    real = part_access.Parts._page

    def read(self, reader, group, page, columns, hint):
        last = reader.page_table(group).pages - 1
        return real(self, reader, group, page + 1 if page < last else page - 1, columns, hint)

    with patched(part_access.Parts, "_page", read):
        yield


@on_real_storage
@bug
def updates_in_no_order_are_taken_for_sorted() -> Iterator[None]:
    real = run_merge.RunMerge.run

    def run(self, desc):
        self.runs = [Run(run.parts, Order.SORTED, run.schema) for run in self.runs]
        return real(self, desc)

    with patched(run_merge.RunMerge, "run", run):
        yield


@on_real_storage
@bug
def rows_from_before_a_column_was_added_do_not_hold_its_default() -> Iterator[None]:
    real = update_table._project_column

    def projected(table, there, written, field):
        return real(table, there, written, msgspec.structs.replace(field, default=None))

    with patched(update_table, "_project_column", projected):
        yield


@on_real_storage
@bug
def a_failed_merge_deletes_what_it_passed_through() -> Iterator[None]:
    real = run_merge.RunMerge._undo

    def undo(self):
        real(self)
        run_merge.delete_keys([part.key for run in self.runs for part in run.parts if part.key], self.blob, None)

    with patched(run_merge.RunMerge, "_undo", undo):
        yield


@on_real_storage
@bug
def the_parts_of_a_round_are_deleted_before_they_are_read() -> Iterator[None]:
    real = run_merge.RunMerge._round

    def round(self, found):
        written = real(self, found)
        self._delete_temporary()
        return written

    with patched(run_merge.RunMerge, "_round", round):
        yield


# Net changes that a process keeps.


@in_stores
@bug
def net_changes_are_read_again_though_there_are_newer_changes() -> Iterator[None]:
    real = settled_run_with_changes._name

    def name(parts, found, request):
        return real(parts, found._replace(others=[]), request)

    with patched(settled_run_with_changes, "_name", name):
        yield


@in_stores
@bug
def net_changes_are_read_again_as_of_another_time() -> Iterator[None]:
    with patched(settled_run_with_changes, "_ends_by", lambda part, until: True):
        yield


def _whole(part: Part) -> Part:
    return msgspec.structs.replace(part, lower=None, upper=None, rewrite=None)
