"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from engine import console, files
from engine.settings import DEFAULT_MODEL, Runtime

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
tokens_option = click.option(
    "--tokens/--no-tokens",
    default=None,
    help="Whether a new store keeps the vectors of the texts' words, for ranking and explanations "
    "(default: yes).",
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
    runtime = click.option(
        "--runtime",
        type=click.Choice([runtime.value for runtime in Runtime]),
        help="What runs the model; all give the same vectors (default auto).",
    )
    return model(offline(runtime(command)))


def check_target(path: str) -> None:
    """A file can be written there: asked before the work is done."""
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        raise click.BadParameter(f"{path} cannot be written: name a file in a directory there is")


def write_page(path: str, text: str) -> None:
    """Write a page to a file, whole or not at all."""
    files.publish(Path(path), lambda temporary: _write(temporary, text))
    console.note(f"written to {path}")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
