"""The command line application with all verbs."""

from __future__ import annotations

from typing import Annotated

import typer

import timespine as ts
from timespine.cli.command_group import CommandGroup
from timespine.cli.commands import (
    append_and_load,
    arrangement_checkpoints,
    collections,
    copy_restore_fence,
    evolve,
    inspect,
    maintain,
    migrate_postgres,
    modify,
    read,
    retention,
    views,
    write_and_seal,
)

app = typer.Typer(
    name="timespine",
    cls=CommandGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

VERBS = (
    collections,
    evolve,
    append_and_load,
    modify,
    write_and_seal,
    read,
    retention,
    maintain,
    copy_restore_fence,
    migrate_postgres,
    inspect,
    views,
    arrangement_checkpoints,
)
"""The modules of verbs, in the order of the help."""

for module in VERBS:
    module.add_commands(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"timespine {ts.__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="""\b
Exit codes:
  0  done
  1  a bug in Timespine: run it again with --debug and report the output
  2  fix the call; nothing was changed
  3  ask for something else: that time is expired or not complete yet,
     or another writer was first
  4  start again: a lease or a token is no longer valid
  5  try again: storage failed
  6  stop: stored bytes are damaged, or written by a newer version
  7  do not run it again: it was done, but the result could not be written;
     standard error says what it was
  130 interrupted, 141 output closed, 143 terminated
""",
)
def timespine(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from. May stand anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keep collections that change over time: read them as of any time, see what changed, follow them live.

    Results go to standard output, everything else to standard error. Only verbs
    that say so change a store. Reading rows registers a lease, which is a small
    write into the store, and ends it afterwards.

    \b
    Example:
      timespine init ./data
      timespine create ./data orders --key id:int64 --value total:double
      echo '{"id": 1, "total": 9.5}' | timespine append ./data orders - --format json
      timespine snapshot ./data orders
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
