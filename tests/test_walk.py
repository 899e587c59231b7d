"""The walk of a public call is counted as bench/walk.py says, and looks at the log as often as it must."""

from bench import walk
from bench.walk import Entry


def test_switches_are_neighbours_in_different_rooms_and_shared_modules_are_no_stations():
    client, core = Entry("client/store.py", "a"), Entry("core/state.py", "b")
    shared = Entry("locks.py", "c")
    found = walk.figures([client, client, shared, client, core, Entry("model/time.py", "d"), core])
    assert (found.calls, found.functions, found.files) == (7, 4, 4)
    assert (found.room_switches, found.station_switches, found.file_switches) == (5, 1, 5)


def test_an_append_reads_no_log_and_a_first_snapshot_reads_it_once_at_few_stations():
    found = {name: walk.figures(entries) for name, entries in walk.walks()}
    assert [(each.scans, each.compare_and_sets) for each in found.values()][:4] == [(0, 1), (0, 1), (1, 1), (1, 2)]
    assert [each.station_switches <= most for each, most in zip(found.values(), (25, 50, 45, 66), strict=False)] == [
        True
    ] * 4
    assert all(each.station_switches < each.room_switches < each.calls for each in found.values())
    assert walk.causes([]).count(":\n") == 3
