"""A collection of numbers that tests of group commit share."""

from timespine.core.transitions import ExpireCommitter, ExpireWriter


def numbers(store, name="numbers"):
    return store.create(name, key={"n": "int64"}, timeline="counter", if_exists="open")


def ids(store):
    return store._committer.session.committer, store._committer.session.writer


def expire(other, collection, store):
    """Another process expires what a store is registered as, in one collection."""
    committer, writer = ids(store)
    other._committer.commit((collection.id, ExpireCommitter(committer)), (collection.id, ExpireWriter(writer)))
