"""What a failure of obstore means for the caller of a port.

SUBTLE: the text of such a failure is never repeated. It contains the body of the reply, in which servers name the
access key and the signed text of the request (tests/location/test_secrets.py).
"""

from __future__ import annotations

import re

from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

from timespine.errors import Determinate, Indeterminate, TimespineError, UsageError

_STATUS = re.compile(r"status: (\d{3})|status code: (\d{3})|\b([45]\d\d) [A-Z]")

CREDENTIALS = (
    "give this process credentials by the usual means of its storage: variables such as AWS_ACCESS_KEY_ID, a web "
    "identity, or the role of its machine"
)
"""What to do if storage refuses a process."""


def translated(error: BaseError, what: str, kind: type[Determinate] | type[Indeterminate]) -> TimespineError:
    """Make the error of a port from a failure of obstore: refused for lack of rights, or of the kind that is given."""
    found = _STATUS.search(str(error))
    status = next((each for each in found.groups() if each), "") if found else ""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in ("401", "403"):
        return UsageError(f"{what}: storage refused it; {CREDENTIALS}")
    if status == "404" or isinstance(error, NotFoundError):
        return UsageError(f"{what}: there is no such bucket; create the bucket first, or check its name")
    reason = f"storage answered {status}" if status else "storage did not answer"
    return kind(f"{what}: {reason} ({type(error).__name__})")
