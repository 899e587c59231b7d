"""Answer a group: commit its transactions together, and give each its reply or its error.

A transaction that cannot be committed must not disturb the others, so they are tried without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from timespine.client.commit.frees_space import is_freeing
from timespine.client.commit.leader_queue import CallReply
from timespine.core.group import CommandTransaction
from timespine.core.protocols.commit import Replies
from timespine.errors import CorruptionError, NoSpace, UsageError, VersionError


class Offer(Protocol):
    """A transaction in a group, with room for its reply."""

    @property
    def item(self) -> CommandTransaction:
        """The transaction."""

    reply: CallReply
    error: BaseException | None


def answer_group(
    group: Sequence[Offer], commit: Callable[[tuple[CommandTransaction, ...]], Replies], is_in_doubt: Callable[[], bool]
) -> None:
    """Commit a group with `commit`, and give each its reply or its error."""
    try:
        replies = commit(tuple(each.item for each in group))
    except (UsageError, CorruptionError, VersionError) as error:
        # One transaction cannot be committed at all: its collection does not exist, its log is damaged, or all
        # together are too large. Unless a commit is in doubt, each is tried alone.
        if len(group) > 1 and not is_in_doubt():
            for each in group:
                answer_group([each], commit, is_in_doubt)
            return
        for each in group:
            each.error = error
    except NoSpace as error:
        # Appends must not use the reserve. Transactions that free space may, so they are committed without appends.
        freeing = [each for each in group if is_freeing(each.item)]
        if len(freeing) == len(group):
            freeing = []  # the whole group frees space, so it has used the reserve
        for each in group:
            each.error = None if each in freeing else error
        if freeing:
            answer_group(freeing, commit, is_in_doubt)
    except Exception as error:
        for each in group:
            each.error = error
    else:
        for each, reply in zip(group, replies, strict=True):
            each.reply = reply
