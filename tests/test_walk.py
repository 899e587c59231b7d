"""The walk of a public call is counted as bench/walk.py says, and looks at the log as often as it must."""

from bench import walk
from bench.walk import Entry


def test_switches_are_neighbours_in_different_rooms_and_shared_modules_are_no_stations():
    client, core = Entry("client/store.py", "a"), Entry("core/state.py", "b")
    shared = Entry("locks.py", "c")
    found = walk.figures([client, client, shared, client, core, Entry("model/time.py", "d"), core])
    assert (found.calls, found.functions, found.files) == (7, 4, 4)
    assert (found.room_switches, found.station_switches, found.file_switches) == (5, 1, 5)


def test_an_append_reads_no_log_and_a_first_snapshot_reads_it_once_and_writes_nothing():
    found = {name: walk.figures(entries) for name, entries in walk.walks()}
    assert [(each.scans, each.compare_and_sets) for each in found.values()][:4] == [(0, 1), (0, 1), (1, 0), (1, 1)]
    append, many, snapshot, upsert, _ = found.values()
    # Half of 59, 80 and 113, which the walk table of ARCHITECTURE.md has as "before".
    assert append.room_switches <= 29
    assert snapshot.room_switches <= 40
    assert upsert.room_switches <= 56
    assert many.station_switches <= 50
    assert all(each.station_switches < each.room_switches < each.calls for each in found.values())
    assert walk.causes([]).count(":\n") == 3
