"""attendex: semantic search that shows its work.

Importing this package loads none of torch, faiss, sqlalchemy or sentence-transformers: each
public name is imported when it is first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from engine._version import __version__

if TYPE_CHECKING:
    from engine.core import Engine
    from engine.embedding.base import Embedder
    from engine.errors import EngineError
    from engine.ranking.contract import Reranker
    from engine.ranking.rerank import AttentionReranker
    from engine.settings import IndexSpec
    from engine.types import Document, Explanation, Hit, SearchResult

__all__ = [
    "AttentionReranker",
    "Document",
    "Embedder",
    "Engine",
    "EngineError",
    "Explanation",
    "Hit",
    "IndexSpec",
    "Reranker",
    "SearchResult",
    "__version__",
]

_HOMES = {
    "AttentionReranker": "engine.ranking.rerank",
    "Document": "engine.types",
    "Embedder": "engine.embedding.base",
    "Engine": "engine.core",
    "EngineError": "engine.errors",
    "Explanation": "engine.types",
    "Hit": "engine.types",
    "IndexSpec": "engine.settings",
    "Reranker": "engine.ranking.contract",
    "SearchResult": "engine.types",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'engine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
