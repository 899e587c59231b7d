"""What is stored of views: another plan of a text, or other rows of a stage, makes all stored views ask for a rebuild.

If a test here fails, change `STAGES_VERSION` or `EXACT_VERSION` on purpose, and say so in the changelog. The digest has
the repr of the plan in it, so that a renamed field of a node counts too.
"""

import pytest
from test_views import SUMS, filled

from timespine.views.definition import EXACT_VERSION, STAGES_VERSION, decode_definition

STORED = (
    b'{"version":1,"sql":"SELECT g, sum(v) AS s, count(*) AS n FROM a GROUP BY g","inputs":[["a","c1",'
    b'[["k",1,"int64"],["g",2,"int64"],["v",3,"int64"]]]],"policy":"auto","mode":"incremental","times":"refresh",'
    b'"token":"t1","stages":["s1"],"digest":"0"}'
)
"""A definition as version 1 stored it, without the fields that came later."""

JOINED = """
    SELECT l.g, count(*) AS n, avg(r.v) AS m, max(l.v) AS top FROM a l LEFT JOIN a r ON l.k = r.v
    WHERE l.v > 0 GROUP BY l.g
"""
DOUBLES = "SELECT g, sum(CAST(v AS DOUBLE)) AS s FROM a GROUP BY g"

DIGESTS = {
    SUMS: "a68378786f005a53beb3644cf8b9cc67",
    JOINED: "4c83f7fd6f746afd1f72c39638126b53",
    DOUBLES: "e06305d5a345c268f2a17f682755d8ca",
}


def stages_of(store):
    return [name for name in sorted(store.names(hidden=True)) if name.startswith("timespine.stage.")]


def test_the_versions_of_stages_are_those_that_the_digests_here_are_of():
    assert (STAGES_VERSION, EXACT_VERSION) == (2, 3)


@pytest.mark.parametrize("sql", DIGESTS, ids=["sums", "joined", "doubles"])
def test_the_plan_of_a_text_has_the_digest_that_stored_views_have(place, sql):
    assert filled(place).view("v", sql=sql).definition.digest == DIGESTS[sql]


def test_the_rows_of_a_stage_are_the_groups_with_their_accumulators(place):
    store = filled(place)
    store.view("v", sql=SUMS)
    (stage,) = stages_of(store)
    schema = [(each.name, str(each.type)) for each in store[stage].schema.arrow]
    assert schema == [("key0", "int64"), ("sum0", "int64"), ("number0", "int64"), ("n", "int64")]
    assert sorted(store[stage].snapshot().to_pylist(), key=repr) == [
        {"key0": 0, "sum0": 2, "number0": 2, "n": 2},
        {"key0": 1, "sum0": 4, "number0": 2, "n": 2},
    ]


def test_the_rows_of_a_stage_of_doubles_have_exact_sums(place):
    store = filled(place)
    store.view("v", sql=DOUBLES)
    (stage,) = stages_of(store)
    first, second = sorted(store[stage].snapshot().to_pylist(), key=lambda row: row["key0"])
    assert first == {"key0": 0, "exact0": b"\x003\x04\x01", "sum0": 2.0, "number0": 2, "n": 2}
    assert second == {"key0": 1, "exact0": b"\x004\x04\x01", "sum0": 4.0, "number0": 2, "n": 2}


def test_a_definition_of_version_1_decodes_to_what_it_meant():
    found = decode_definition(STORED)
    assert (found.sql, found.stages, found.reasons, found.types) == (SUMS, ("s1",), (), ())
    assert found.inputs[0].columns[1].name == "g"
    assert decode_definition(found.encode()) == found
