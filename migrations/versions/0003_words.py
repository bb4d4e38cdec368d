"""The vectors of the passages' words."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column(
        "generation", sa.Column("worded", sa.Integer(), nullable=False, server_default="0")
    )
    op.add_column(
        "generation", sa.Column("word_bytes", sa.Integer(), nullable=False, server_default="0")
    )
    op.create_table(
        "passage_words",
        sa.Column("passage_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["passage_id"],
            ["passages.id"],
            name=op.f("fk_passage_words_passage_id_passages"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("passage_id", name=op.f("pk_passage_words")),
    )
    op.create_table(
        "directions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("words", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("matrix", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_directions_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_directions")),
    )
