"""Alembic's entry: runs the revisions on the connection the store hands over.

The store opens the transaction, so that a failed upgrade rolls back whole; from a checkout,
`alembic -x store=PATH revision --autogenerate` opens its own.
"""

from __future__ import annotations

from pathlib import Path

from alembic import context
from sqlalchemy import create_engine

from engine.storage import lexical, schema


def run() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        context.configure(connection=connection, target_metadata=schema.metadata)
        context.run_migrations()
        return
    store = Path(context.get_x_argument(as_dictionary=True)["store"])
    engine = create_engine(f"sqlite:///{store / 'store.db'}")
    with engine.connect() as own:
        context.configure(
            connection=own,
            target_metadata=schema.metadata,
            render_as_batch=True,
            include_name=lambda name, *_: name not in lexical.OWNED,
        )
        with context.begin_transaction():
            context.run_migrations()


run()
