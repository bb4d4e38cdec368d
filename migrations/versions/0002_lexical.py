"""The lexical index over the passages, filled from those there are."""

from __future__ import annotations

from alembic import op

from engine.storage import alchemy, lexical

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    connection = alchemy.plain(op.get_bind())
    lexical.create(connection)
    lexical.fill(connection)
