"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from engine.settings import DEFAULT_MODEL

DEFAULT_STORE = "attendex.store"
Command = TypeVar("Command", bound=Callable[..., Any])

store_option = click.option(
    "--store",
    envvar="ATTENDEX_STORE",
    default=DEFAULT_STORE,
    show_default=True,
    show_envvar=True,
    help="The store's directory.",
)
json_option = click.option(
    "--json/--table",
    "as_json",
    default=None,
    help="JSON lines or a table; by default a table on a terminal, JSON lines in a pipe.",
)
half_option = click.option("--half", is_flag=True, help="Embed in 16 bit, where there is a GPU.")


def model_options(command: Command) -> Command:
    """The options of commands that may embed."""
    model = click.option(
        "--model",
        help=f"A sentence-transformers model, by hub name or local path. A new store takes "
        f"{DEFAULT_MODEL}; an existing one knows its own.",
    )
    offline = click.option("--offline", is_flag=True, help="Never fetch a model.")
    return model(offline(command))
