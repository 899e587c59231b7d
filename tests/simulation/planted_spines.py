"""Planted bugs of the spines of arrangements, which histories of spines are to notice: see `planted.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from mutations import bug, in_real_spines, in_spines, patched

from timespine.arrangement.read import key_window
from timespine.arrangement.read.cursor import Cursor
from timespine.arrangement.spine import retention_filters
from timespine.core.arrangement import level_transitions, levels, save_transitions, spine_files
from timespine.core.arrangement.levels import LevelRules, LevelSlot, MergeStatus
from timespine.core.effects import DeleteFiles, DropMerge, Swap
from timespine.core.protocols import merge_spine, save_spine


@in_spines
@bug
def pausing_hides_loose_batches() -> Iterator[None]:
    def pause_merges(levels):
        slots = tuple(slot.drop(MergeStatus.LOOSE) for slot in levels.slots)
        return replace(levels, slots=slots, pauses=levels.pauses + 1), None

    with patched(level_transitions, "pause_merges", pause_merges):
        yield


@in_spines
@bug
def inputs_leave_before_the_output_is_there() -> Iterator[None]:
    real = level_transitions.start_merge

    def start_merge(levels, level, resources, batches_min=None):
        begun, plan = real(levels, level, resources, batches_min)
        return replace(begun, slots=tuple(slot.drop(MergeStatus.MERGING) for slot in begun.slots)), plan

    with patched(level_transitions, "start_merge", start_merge):
        yield


@in_spines
@bug
def the_output_is_there_before_the_inputs_leave() -> Iterator[None]:
    real = level_transitions.complete_merge

    def complete_merge(levels, level, output, slices):
        inputs = tuple((each, MergeStatus.LOOSE) for each in levels.slots[level].merging)
        done, answer = real(levels, level, output, slices)
        slot = done.slots[level]
        return level_transitions._put(done, level, replace(slot, entries=(*inputs, *slot.entries))), answer

    with patched(level_transitions, "complete_merge", complete_merge):
        yield


@in_spines
@bug
def the_newest_batches_merge_first() -> Iterator[None]:
    real = LevelSlot.take

    def take(self, limit, place):
        turned = real(replace(self, entries=self.entries[::-1]), limit, place)
        return replace(turned, entries=turned.entries[::-1])

    with patched(LevelSlot, "take", take):
        yield


@in_spines
@bug
def retractions_of_fresh_batches_count_more() -> Iterator[None]:
    real = levels.level_of

    def level_of(rules, batch, is_merged):
        return real(rules, batch, True)

    with patched(level_transitions, "level_of", level_of):
        yield


@in_spines
@bug
def retractions_of_merged_batches_count_once() -> Iterator[None]:
    real = levels.level_of

    def level_of(rules, batch, is_merged):
        return real(rules, batch, False)

    with patched(level_transitions, "level_of", level_of):
        yield


@in_spines
@bug
def batches_that_are_being_merged_do_not_count() -> Iterator[None]:
    def is_full(levels):
        loose = sum(len(slot.loose) for slot in levels.slots)
        return loose >= levels.rules.batches_max and levels.pauses == 0 and not levels.is_closing

    with patched(levels, "is_full", is_full), patched(level_transitions, "is_full", is_full):
        yield


@in_spines
@bug
def an_inserter_that_lost_the_room_does_not_look_again() -> Iterator[None]:
    real = merge_spine._insert_now

    def insert_now(batch, stored, upper):
        yield from real(batch, stored, upper)
        return True

    with patched(merge_spine, "_insert_now", insert_now):
        yield


@in_spines
@bug
def abandoned_inputs_go_to_the_end_of_the_line() -> Iterator[None]:
    def abandon_merge(levels, level, has_failed=False):
        slot = levels.slots[level]
        entries = (*slot.drop(MergeStatus.MERGING).entries, *((batch, MergeStatus.LOOSE) for batch in slot.merging))
        return level_transitions._put(levels, level, replace(slot, entries=entries)), None

    with patched(level_transitions, "abandon_merge", abandon_merge):
        yield


@in_spines
@bug
def a_fork_forgets_what_is_being_merged() -> Iterator[None]:
    real = level_transitions.fork

    def fork(levels):
        return real(replace(levels, slots=tuple(slot.drop(MergeStatus.MERGING) for slot in levels.slots)))

    with patched(level_transitions, "fork", fork):
        yield


@in_spines
@bug
def empty_batches_are_inserted() -> Iterator[None]:
    real = level_transitions.insert_batch

    def insert_batch(levels, batch, upper=None, owns_file=False):
        changed, is_in = real(levels, batch, upper, owns_file)
        return (changed if batch.rows else level_transitions._add(changed, batch, False)), is_in

    with patched(level_transitions, "insert_batch", insert_batch):
        yield


@in_spines
@bug
def merges_fold_times_up_to_the_upper() -> Iterator[None]:
    real = level_transitions.start_merge

    def start_merge(levels, level, resources, batches_min=None):
        begun, plan = real(levels, level, resources, batches_min)
        if isinstance(plan, level_transitions.MergePlan):
            plan = replace(plan, since=levels.upper)
        return begun, plan

    with patched(level_transitions, "start_merge", start_merge):
        yield


@in_spines
@bug
def a_level_begins_a_second_merge() -> Iterator[None]:
    real = level_transitions.start_merge

    def start_merge(levels, level, resources, batches_min=None):
        slot = levels.slots[level]
        if batches_min is None or not slot.merging or len(slot.loose) < batches_min or levels.gives_way:
            return real(levels, level, resources, batches_min)
        begun = slot.take(levels.rules.merge_max, MergeStatus.MERGING)
        inputs = begun.merging[len(slot.merging) :]
        return level_transitions._put(levels, level, begun), level_transitions.MergePlan(inputs, False, levels.since)

    with patched(level_transitions, "start_merge", start_merge):
        yield


@in_spines
@bug
def everything_is_said_to_be_merged_after_one_merge() -> Iterator[None]:
    real = level_transitions.start_compaction

    def start_compaction(levels, resources):
        begun, plan = real(levels, resources)
        if plan is not None and not plan.is_whole:
            return replace(begun, compactions=begun.compactions - 1), replace(plan, is_whole=True)
        return begun, plan

    with patched(level_transitions, "start_compaction", start_compaction):
        yield


@in_spines
@bug
def merges_start_while_merging_is_paused() -> Iterator[None]:
    real = levels.is_due

    def is_due(levels, level, resources):
        return real(replace(levels, pauses=0), level, resources)

    with patched(levels, "is_due", is_due), patched(level_transitions, "is_due", is_due):
        yield


@in_spines
@bug
def a_pause_does_not_wait_for_merges() -> Iterator[None]:
    real = merge_spine.pause

    def pause(waits=True, limit_ms=merge_spine.WAIT_MS):
        yield from real(False, limit_ms)

    with patched(merge_spine, "pause", pause):
        yield


@in_spines
@bug
def a_merge_of_everything_that_failed_still_keeps_levels_from_merging() -> Iterator[None]:
    def withdraw_compaction(levels):
        return levels, None

    with patched(level_transitions, "withdraw_compaction", withdraw_compaction):
        yield


@in_spines
@bug
def a_manifest_is_written_before_its_files_are_durable() -> Iterator[None]:
    def not_durable_yet(levels, manifest):
        return ()

    with patched(save_spine, "_not_durable_yet", not_durable_yet):
        yield


@in_spines
@bug
def files_that_only_the_older_manifest_names_are_deleted() -> Iterator[None]:
    real = spine_files.drop_unnamed

    def drop_unnamed(files, live):
        dropped = real(replace(files, manifests=files.manifests[-1:]), live)
        return replace(dropped, manifests=files.manifests)

    with patched(spine_files, "drop_unnamed", drop_unnamed):
        yield


@in_spines
@bug
def a_save_claims_its_files_when_it_ends() -> Iterator[None]:
    begin, extend = spine_files.begin_manifest, spine_files.extend_manifest
    there: dict[int, tuple[str, ...]] = {}

    def begin_manifest(files, names):
        begun, manifest = begin(files, ())
        there[manifest.number] = names
        return begun, manifest

    def extend_manifest(files, number, names):
        return extend(files, number, (*there[number], *names))

    with (
        patched(spine_files, "begin_manifest", begin_manifest),
        patched(spine_files, "extend_manifest", extend_manifest),
    ):
        yield


@in_spines
@bug
def a_manifest_in_doubt_is_forgotten() -> Iterator[None]:
    def doubt_save(levels):
        return save_transitions.withdraw_save(levels, levels.files.saving, ())

    with patched(save_transitions, "doubt_save", doubt_save):
        yield


@in_spines
@bug
def the_dirty_flag_is_not_restored() -> Iterator[None]:
    real = save_transitions.restored

    def restored(rules: LevelRules, batches, manifests, is_dirty, since, upper):
        return real(rules, batches, manifests, False, since, upper)

    with patched(save_transitions, "restored", restored):
        yield


@in_spines
@bug
def the_file_of_a_refused_batch_is_forgotten() -> Iterator[None]:
    def discard(batch, stored):
        yield from ()

    with patched(merge_spine, "_discard", discard):
        yield


@in_spines
@bug
def the_file_of_an_abandoned_merge_is_forgotten() -> Iterator[None]:
    def drop(merge):
        yield DropMerge(merge)

    with patched(merge_spine, "_drop", drop):
        yield


@in_spines
@bug
def garbage_that_was_not_deleted_is_forgotten() -> Iterator[None]:
    def delete_garbage():
        levels = yield Swap(level_transitions.look)
        names, manifests = levels.files.garbage, levels.files.dropped_manifests
        if names or manifests:
            yield Swap(partial(save_transitions.forget_deleted_files, names=names, manifests=manifests))
            try:
                yield DeleteFiles(manifests, names)
            except merge_spine.Unavailable:
                return

    with patched(merge_spine, "delete_garbage", delete_garbage), patched(save_spine, "delete_garbage", delete_garbage):
        yield


def _without(piece, rows):
    """A piece without some of its first rows, or of its last if the number is negative."""
    part = slice(rows, None) if rows >= 0 else slice(None, rows)
    places = np.arange(piece.rows)[part]
    times = tuple(each if isinstance(each, int) else each[part] for each in piece.times)
    columns = {name: column.take(places) for name, column in piece.columns.items()}
    diffs = None if piece.diffs is None else piece.diffs[part]
    return piece._replace(columns=columns, words=piece.words[part], times=times, diffs=diffs)


@in_real_spines
@bug
def a_window_backwards_skips_its_edge() -> Iterator[None]:
    real = key_window.step_back

    def step_back(batches, upper, rows, *, inclusive):
        pieces, cut = real(batches, upper, rows, inclusive=inclusive)
        if cut is None:
            return pieces, cut
        word = cut.word(0)[0]
        return [_without(piece, int((piece.words == word).sum())) for piece in pieces], cut

    with patched(key_window, "step_back", step_back):
        yield


@in_real_spines
@bug
def a_window_is_cut_inside_of_a_key() -> Iterator[None]:
    real = key_window.Walk.step

    def step(self, rows):
        pieces = real(self, rows)
        is_cut = self.reached is not None and len(pieces) > 1 and pieces[-1].rows > 1
        return [*pieces[:-1], _without(pieces[-1], -1)] if is_cut else pieces

    with patched(key_window.Walk, "step", step):
        yield


@in_real_spines
@bug
def a_cursor_ends_where_a_window_is_empty() -> Iterator[None]:
    def settle_forwards(self):
        self._go_to(0)

    with patched(Cursor, "_settle_forwards", settle_forwards):
        yield


@in_real_spines
@bug
def a_filter_drops_the_last_row_that_it_keeps() -> Iterator[None]:
    real = retention_filters._taken

    def taken(updates, places):
        return real(updates, places[:-1] if len(places) > 1 else places)

    with patched(retention_filters, "_taken", taken):
        yield
