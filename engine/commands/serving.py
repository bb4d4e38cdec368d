"""`attendex daemon`."""

from __future__ import annotations

import os
import re
import signal

import click

from engine import console, notes
from engine.commands.options import json_option, model_options, store_option
from engine.serving import protocol
from engine.serving.client import Options
from engine.serving.link import Link, linked
from engine.serving.protocol import MalformedError, Message

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_STOP_SECONDS = 15.0
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Duration(click.ParamType[float]):
    """Seconds, from 90, 90s, 10m or 2h."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?) *([smh]?)", str(value))
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no time above 0; write it as 90s, 10m or 2h", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


@click.command()
@click.option(
    "--idle",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="End when nothing was asked for so long.",
)
@click.option("--stop", is_flag=True, help="End the daemon of the store.")
@click.option("--status", is_flag=True, help="Say what the daemon does; exit status 1: none runs.")
@click.option(
    "--cross-encoder",
    metavar="MODEL",
    help="Answer those who ask for this CrossEncoder, and no others.",
)
@store_option
@model_options
@json_option
def daemon(
    idle: float,
    stop: bool,
    status: bool,
    cross_encoder: str | None,
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    as_json: bool | None,
) -> None:
    """Keep the store, its model and its index open, and answer query, explain and why.

    Runs until it is interrupted, stopped, or idle; one a store and user. Those commands find it by
    themselves, give the very same answers, and answer themselves where it does not run, is of
    another version, or was started with another --model, --runtime, --cross-encoder or
    environment. It sees every commit, and ends where the store is removed or replaced. With
    `query --daemon`, or ATTENDEX_DAEMON=1, one is started in the background.
    """
    if stop and status:
        raise click.UsageError("give either --stop or --status")
    if stop:
        _stop(store)
    elif status:
        _show(store, console.Console(as_json))
    else:
        _run(store, idle, model, offline, runtime, cross_encoder)


def _run(
    store: str,
    idle: float,
    model: str | None,
    offline: bool,
    runtime: str | None,
    cross_encoder: str | None,
) -> None:
    surroundings = protocol.surroundings()  # before the libraries add to the environment
    for name in ("ATTENDEX_STORE", "ATTENDEX_DAEMON"):
        os.environ.pop(name, None)  # those of who asks count
    from engine.commands.asking import read_line, reranker_of
    from engine.core import Engine
    from engine.serving.claim import claimed
    from engine.serving.server import Daemon

    options = Options.of(model, runtime, cross_encoder)
    with (
        claimed(store) as place,
        Engine.open(
            place.store,
            model=options.model,
            offline=offline,
            runtime=runtime,
            reranker=reranker_of(options.cross_encoder, offline),
        ) as engine,
    ):
        made = Daemon(engine, place, options, idle=idle, surroundings=surroundings, read=read_line)
        made.warm_up()
        for name in _SIGNALS:
            signal.signal(getattr(signal, name), lambda *_: made.end("it was interrupted"))
        why = made.run(lambda: notes.note(f"answering for {place.store}"))
    notes.note(f"ended: {why}")


def _stop(store: str) -> None:
    link = linked(store)
    if link is None:
        notes.note(f"no daemon of {store} runs")
        return
    process = link.process
    _told(link, "stop")
    from engine.serving.claim import is_free

    if not is_free(link.place, _STOP_SECONDS):
        raise click.ClickException(f"the daemon of {store} still runs; to end it: kill {process}")
    notes.note(f"the daemon of {store} has ended")


def _show(store: str, out: console.Console) -> None:
    link = linked(store)
    if link is None:
        notes.note(f"no daemon of {store} runs")
        raise SystemExit(1)
    out.values(_told(link, "status"))


def _told(link: Link, what: str) -> Message:
    """The daemon's reply. Raises `ClickException` naming its process where it gives none."""
    process = link.process
    try:
        with link:
            return link.call({"do": what})
    except (OSError, EOFError, MalformedError):
        raise click.ClickException(
            f"the daemon of {link.place.store} does not answer; to end it: kill {process}"
        ) from None
