"""The group of all verbs, which turns errors into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperGroup

from timespine.cli.error_report import INTERRUPTED, NO_READER, report_error
from timespine.cli.error_wording import hint_text
from timespine.cli.output.destination import silence_stdout
from timespine.hints import rendered_by

DEBUG = "--debug"


class CommandGroup(TyperGroup):
    """A group that runs a verb, and shows a traceback only with --debug."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a verb; return the exit code, or exit with it."""
        given = list(sys.argv[1:] if args is None else args)
        kept = [each for each in given if each != DEBUG]  # it may stand anywhere
        can_wait = self._has_option(kept, "--wait")
        try:
            with rendered_by(partial(hint_text, can_wait=can_wait)):
                result = super().main(kept, prog_name or "timespine", complete_var, standalone_mode=False, **extra)
            code = result if isinstance(result, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except Exception as error:
            code = report_error(error, as_json=_wants_json(kept), debug=DEBUG in given, can_wait=can_wait)
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Handle here what typer handles differently in each version."""
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
        """Return whether the verb has an option."""
        verb = next((self.commands[each] for each in args if each in self.commands), None)
        return verb is not None and any(option in each.opts for each in verb.params)


def _wants_json(args: Sequence[str]) -> bool:
    """Return whether to write errors as JSON. Read the raw arguments, since parsing them may be what failed."""
    following = dict(pairwise(args))
    return following.get("--output") == "json" or following.get("-o") == "json" or "--output=json" in args
