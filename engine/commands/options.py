"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from engine import files, notes
from engine.serving.protocol import DEFAULT_STORE
from engine.settings import DEFAULT_MODEL, Precision, Runtime

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
overwrite_option = click.option("--overwrite", is_flag=True, help="Write over a page there is.")
helper_option = click.option(
    "--daemon/--no-daemon",
    "helper",
    envvar="ATTENDEX_DAEMON",
    default=None,
    show_envvar=True,
    help="Start a daemon where none runs, or ask none (default: one that runs is asked).",
)
demo_store_option = click.option(
    "--store",
    default="attendex-demo.store",
    show_default=True,
    help="The demonstration's own store.",
)
half_option = click.option("--half", is_flag=True, help="Embed in 16 bit, where there is a GPU.")

precision_option = click.option(
    "--precision",
    type=click.Choice([precision.value for precision in Precision]),
    help="In what a new store embeds, for good: float32 (default), or int8, which onnxruntime runs "
    "quicker on a CPU; `status` shows what it loses.",
)


def model_options(command: Command) -> Command:
    """The options of commands that may embed."""
    model = click.option(
        "--model",
        help=f"A sentence-transformers model, by hub name or local path, or one behind an HTTP "
        f"endpoint: openai:MODEL@https://host/v1. A new store takes {DEFAULT_MODEL}; an existing "
        "one knows its own.",
    )
    offline = click.option("--offline", is_flag=True, help="Never fetch a model.")
    runtime = click.option(
        "--runtime",
        type=click.Choice([runtime.value for runtime in Runtime]),
        help="What runs the model; all give the same vectors (default auto).",
    )
    return model(offline(runtime(command)))


def check_target(path: str, overwrite: bool) -> None:
    """A page may be written there: asked before the work is done."""
    from engine.storage.store import store_exists

    target = Path(path).resolve()
    if target.is_dir() or not target.parent.is_dir():
        raise click.BadParameter(f"{path} cannot be written: name a file in a directory there is")
    if any(store_exists(parent) for parent in target.parents):
        raise click.BadParameter(f"{path} lies in a store; name a file elsewhere")
    if target.exists() and not (overwrite and target.is_file()):
        raise click.BadParameter(f"{path} exists; name another file, or give --overwrite")


def write_page(path: str, text: str, overwrite: bool) -> None:
    """Write a page to a file, whole or not at all."""
    target = Path(path).resolve()
    files.publish(target, lambda temporary: _write(temporary, text), replace=overwrite)
    notes.note(f"written to {path}")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
