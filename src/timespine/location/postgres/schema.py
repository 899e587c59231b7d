"""The tables and functions of the logs in PostgreSQL, by version.

A log is one row of `logs`, which a writer locks, and its entries. SUBTLE: the row is needed. With the unique index of
entries alone, a slow writer could insert a number that was truncated meanwhile (conformance:
`test_what_was_truncated_cannot_be_written_again`).
"""

from __future__ import annotations

VERSION = 1
"""The version of the tables that this code needs."""

LOCK = 7_305_809_321
"""The advisory lock that a migration holds."""

FENCED = "TS001"
"""The SQLSTATE for a store whose epoch was raised."""

WRONG_ISOLATION = "TS002"
"""The SQLSTATE for a change in a transaction that is not at READ COMMITTED."""

MIGRATIONS: dict[int, str] = {
    1: """\
CREATE SCHEMA timespine;

CREATE TABLE timespine.format (version int NOT NULL);

CREATE TABLE timespine.stores (
    id serial PRIMARY KEY,
    store uuid UNIQUE NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    forgotten bigint NOT NULL DEFAULT 0,
    created timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE timespine.logs (
    store int NOT NULL,
    key text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    head bigint NOT NULL,
    PRIMARY KEY (store, key)
) WITH (fillfactor = 50);

CREATE TABLE timespine.entries (
    store int NOT NULL,
    key text COLLATE "C" NOT NULL,
    seqno bigint NOT NULL,
    checksum bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (store, key, seqno)
);
ALTER TABLE timespine.entries ALTER COLUMN data SET STORAGE EXTERNAL;

-- What every change of a store begins with. SUBTLE: settings of the transaction; a pooler drops those of a session.
-- The lock comes before the epoch is read, and each statement sees what was committed before it: a fence waits for the
-- calls that hold the lock, and later ones see its epoch.
CREATE FUNCTION timespine.begin_change(of_store int, in_epoch bigint, alone boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'logs are changed at READ COMMITTED only' USING ERRCODE = 'TS002';
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true), set_config('lock_timeout', '10s', true);
    IF alone THEN
        PERFORM pg_advisory_xact_lock(1416122707, of_store);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(1416122707, of_store);
    END IF;
    PERFORM 1 FROM timespine.stores s WHERE s.id = of_store AND s.epoch = in_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the epoch of this store was raised' USING ERRCODE = 'TS001';
    END IF;
END $$;

-- Keys come sorted, so that no two calls wait for each other. Every statement sees what was committed before it.
CREATE FUNCTION timespine.compare_and_set(
    of_store int, in_epoch bigint, keys text[], expected bigint[], datas bytea[], checksums bigint[]
) RETURNS TABLE (key text, head bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    number int;
    found_head bigint;
    lost_keys text[] := '{}';
    lost_heads bigint[] := '{}';
BEGIN
    PERFORM timespine.begin_change(of_store, in_epoch, false);
    FOR number IN 1..array_length(keys, 1) LOOP
        IF expected[number] IS NULL THEN
            INSERT INTO timespine.logs (store, key, first, head) VALUES (of_store, keys[number], 0, -1)
            ON CONFLICT DO NOTHING;
            CONTINUE WHEN FOUND;
        END IF;
        SELECT l.head INTO found_head FROM timespine.logs l
        WHERE l.store = of_store AND l.key = keys[number] FOR NO KEY UPDATE;
        IF found_head IS DISTINCT FROM expected[number] THEN
            lost_keys := lost_keys || keys[number];
            lost_heads := lost_heads || found_head;
        END IF;
    END LOOP;
    IF array_length(lost_keys, 1) > 0 THEN
        DELETE FROM timespine.logs l WHERE l.store = of_store AND l.head = -1 AND l.key = ANY (keys);
        RETURN QUERY SELECT * FROM unnest(lost_keys, lost_heads);
        RETURN;
    END IF;
    INSERT INTO timespine.entries (store, key, seqno, checksum, data)
    SELECT of_store, w.k, coalesce(w.e, -1) + 1, w.c, w.d
    FROM unnest(keys, expected, checksums, datas) AS w (k, e, c, d);
    UPDATE timespine.logs l SET head = l.head + 1 FROM unnest(keys) AS w (k)
    WHERE l.store = of_store AND l.key = w.k;
END $$;

CREATE FUNCTION timespine.truncate_log(of_store int, in_epoch bigint, of_key text, below bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_head bigint;
    dropped bigint;
BEGIN
    PERFORM timespine.begin_change(of_store, in_epoch, false);
    SELECT l.head INTO found_head FROM timespine.logs l
    WHERE l.store = of_store AND l.key = of_key FOR NO KEY UPDATE;
    IF found_head IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM timespine.entries e WHERE e.store = of_store AND e.key = of_key AND e.seqno < least(below, found_head);
    GET DIAGNOSTICS dropped = ROW_COUNT;
    UPDATE timespine.logs l SET first = greatest(l.first, least(below, found_head))
    WHERE l.store = of_store AND l.key = of_key;
    RETURN dropped;
END $$;

CREATE FUNCTION timespine.register_store(new_store uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT set_config('synchronous_commit', 'on', true);
    INSERT INTO timespine.stores (store) VALUES (new_store) ON CONFLICT DO NOTHING;
$$;

CREATE FUNCTION timespine.fence_store(of_store int, in_epoch bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM timespine.begin_change(of_store, in_epoch, true);
    UPDATE timespine.stores s SET epoch = s.epoch + 1 WHERE s.id = of_store;
    RETURN in_epoch + 1;
END $$;

CREATE FUNCTION timespine.forget_log(of_store int, in_epoch bigint, of_key text, expected bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM timespine.begin_change(of_store, in_epoch, false);
    DELETE FROM timespine.logs l WHERE l.store = of_store AND l.key = of_key AND l.head = expected;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM timespine.entries e WHERE e.store = of_store AND e.key = of_key;
    UPDATE timespine.stores s SET forgotten = s.forgotten + 1 WHERE s.id = of_store;
    RETURN true;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA timespine FROM PUBLIC;
""",
}
"""The statements that make each version from the one before."""

GRANT_READ = """\
GRANT USAGE ON SCHEMA timespine TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA timespine TO {role};
"""
"""What a role needs that reads: it can change nothing."""

GRANT_WRITE = """\
GRANT EXECUTE ON FUNCTION timespine.compare_and_set, timespine.truncate_log, timespine.register_store,
    timespine.fence_store, timespine.forget_log TO {role};
"""
"""What a role that writes needs in addition: it can append to logs, truncate and remove them, raise the epoch, and
change no entry otherwise."""
