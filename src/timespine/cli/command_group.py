"""The group of all verbs: where errors become one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperGroup

from timespine.cli.error_report import INTERRUPTED, NO_READER, tell
from timespine.cli.output.destination import silence_stdout

DEBUG = "--debug"


class Verbs(TyperGroup):
    """Runs a verb; no traceback leaves it, unless one was asked for."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run it; the exit code, or the end of the process with it."""
        given = list(sys.argv[1:] if args is None else args)
        kept = [each for each in given if each != DEBUG]  # it may stand anywhere
        try:
            result = super().main(kept, prog_name or "timespine", complete_var, standalone_mode=False, **extra)
            code = result if isinstance(result, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except Exception as error:
            can_wait = self._has_option(kept, "--wait")
            code = tell(error, as_json=_wants_json(kept), debug=DEBUG in given, can_wait=can_wait)
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. What is typer's to handle otherwise, and differs between its versions, is settled here."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            silence_stdout()
            raise typer.Exit(NO_READER) from None

    def _has_option(self, args: Sequence[str], option: str) -> bool:
        """Whether the verb that was run knows an option."""
        verb = next((self.commands[each] for each in args if each in self.commands), None)
        return verb is not None and any(option in each.opts for each in verb.params)


def _wants_json(args: Sequence[str]) -> bool:
    """Whether errors are to be JSON. From the arguments as they are: they may be what is wrong."""
    following = dict(pairwise(args))
    return following.get("--output") == "json" or following.get("-o") == "json" or "--output=json" in args
