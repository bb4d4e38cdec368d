"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "settings",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_settings")),
    )
    op.create_table(
        "generation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("last_document_id", sa.Integer(), nullable=False),
        sa.Column("last_passage_id", sa.Integer(), nullable=False),
        sa.Column("documents", sa.Integer(), nullable=False),
        sa.Column("passages", sa.Integer(), nullable=False),
        sa.Column("published", sa.JSON()),
        sa.CheckConstraint("id = 1", name=op.f("ck_generation_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_generation")),
    )
    op.create_table(
        "sources",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sources")),
        sa.UniqueConstraint("uri", name=op.f("uq_sources_uri")),
    )
    op.create_table(
        "documents",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("source_id", sa.Integer()),
        sa.Column("content_hash", sa.LargeBinary(16), nullable=False),
        sa.Column("text", sa.Text()),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_documents")),
        sa.UniqueConstraint("key", name=op.f("uq_documents_key")),
        sa.ForeignKeyConstraint(
            ["source_id"],
            ["sources.id"],
            name=op.f("fk_documents_source_id_sources"),
            ondelete="SET NULL",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_documents_source_id"), "documents", ["source_id"])
    op.create_table(
        "passages",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("document_id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("end", sa.Integer(), nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("content_hash", sa.LargeBinary(16)),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_passages")),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_passages_document_id_documents"),
            ondelete="CASCADE",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_passages_document_id"), "passages", ["document_id"])
    op.create_index(op.f("ix_passages_content_hash"), "passages", ["content_hash"])
    op.create_index(
        "ix_passages_chunked",
        "passages",
        ["document_id"],
        sqlite_where=sa.text("ordinal = 1"),
        postgresql_where=sa.text("ordinal = 1"),
    )
    op.create_index(
        "ix_passages_truncated",
        "passages",
        ["document_id"],
        sqlite_where=sa.text("truncated"),
        postgresql_where=sa.text("truncated"),
    )
    op.create_table(
        "tombstones",
        sa.Column("passage_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("passage_id", name=op.f("pk_tombstones")),
    )
    op.create_index(op.f("ix_tombstones_generation"), "tombstones", ["generation"])
    op.create_table(
        "fields",
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_fields")),
    )
