"""The tables. They are made and changed only by the migrations; a test compares the two.

Ids of documents and passages are handed out from the counters of `generation` and never reused:
a passage's id is its vector's id everywhere.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

settings = Table(
    "settings",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", JSON, nullable=False),
)
"""Fixed when the store is made: model, fingerprint, dimension, metric, index kind."""

generation = Table(
    "generation",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="single"), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("last_document_id", Integer, nullable=False),
    Column("last_passage_id", Integer, nullable=False),
    Column("documents", Integer, nullable=False),
    Column("passages", Integer, nullable=False),
    Column("published", JSON(none_as_null=True)),
    Column("worded", Integer, nullable=False, server_default="0"),
    Column("word_bytes", Integer, nullable=False, server_default="0"),
)
"""One row. `number` grows by one with every commit; `published` names the index file (a cache)
that holds the passages of an earlier generation. `worded` counts the rows of `passage_words`,
`word_bytes` the bytes of their vectors."""

sources = Table(
    "sources",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uri", Text, nullable=False, unique=True),
    Column("finished", Boolean, nullable=False),
)
"""Files that documents came from. One that is not `finished` was being read when the process
that read it ended."""

documents = Table(
    "documents",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("source_id", Integer, ForeignKey("sources.id", ondelete="SET NULL"), index=True),
    Column("content_hash", LargeBinary(16), nullable=False),
    Column("text", Text),
    Column("metadata", JSON, nullable=False),
    sqlite_autoincrement=True,
)
"""`key` is the caller's id. `text` is NULL where the document's one passage holds all of it."""

passages = Table(
    "passages",
    metadata,
    Column("id", Integer, primary_key=True),
    Column(
        "document_id",
        Integer,
        ForeignKey("documents.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("ordinal", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("end", Integer, nullable=False),
    Column("token_count", Integer, nullable=False),
    Column("truncated", Boolean, nullable=False),
    Column("content_hash", LargeBinary(16), index=True),
    Column("text", Text, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)
"""Characters [start, end) of the document and their vector, float32 little-endian.
`content_hash` is that of the embedded text; NULL where the caller brought the vector."""

Index(
    "ix_passages_chunked",
    passages.c.document_id,
    sqlite_where=passages.c.ordinal == 1,
    postgresql_where=passages.c.ordinal == 1,
)

Index(
    "ix_passages_truncated",
    passages.c.document_id,
    sqlite_where=passages.c.truncated,
    postgresql_where=passages.c.truncated,
)

passage_words = Table(
    "passage_words",
    metadata,
    Column(
        "passage_id",
        Integer,
        ForeignKey("passages.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("width", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""The word vectors of passages that were embedded, as `engine.words` packs them."""

directions = Table(
    "directions",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="single"), primary_key=True),
    Column("words", Integer, nullable=False),
    Column("width", Integer, nullable=False),
    Column("matrix", LargeBinary, nullable=False),
)
"""At most one row: what word vectors are projected on, float32 (D, width) little-endian, fitted
once on so many words."""

tombstones = Table(
    "tombstones",
    metadata,
    Column("passage_id", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, nullable=False, index=True),
)
"""Passages deleted since the published index was made: the index holds them, answers must not."""

fields = Table("fields", metadata, Column("name", Text, primary_key=True))
"""Every metadata field seen, dotted where nested, so that a misspelt filter can be told."""
