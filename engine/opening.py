"""Making and opening stores, each with the model that belongs to it."""

from __future__ import annotations

from engine.embedding.base import Embedder, gives_words, is_symmetric
from engine.errors import InvalidInputError, StoreExistsError
from engine.models import ModelSource
from engine.settings import IndexSpec, Metric, Precision, Runtime
from engine.storage.records import StoreSettings
from engine.storage.store import Store, as_path, create_store, new_store_id, store_exists


def create(
    path: object,
    model: str | Embedder,
    index: IndexSpec | None,
    *,
    exist_ok: bool,
    offline: bool,
    half: bool,
    runtime: Runtime | str | None,
    precision: Precision | str | None,
    tokens: bool | None,
) -> tuple[Store, ModelSource]:
    """A new store and its model; the existing one, of the same model and metric, if `exist_ok`.

    Raises `StoreExistsError`, `ModelError`, `StorageError`, `InvalidInputError`.
    """
    where = as_path(path)
    spec = IndexSpec() if index is None else index
    if not isinstance(spec, IndexSpec):
        raise InvalidInputError(f"index must be an IndexSpec, not {index!r}")
    models = ModelSource(model, offline=offline, half=half, runtime=runtime, precision=precision)
    if not store_exists(where):
        embedder = models.load()
        if spec.factory is not None:
            from engine.index import native  # which loads FAISS

            native.made(spec.factory, int(embedder.dimension))
        made = StoreSettings(
            model=models.identify(),
            custom=models.is_custom,
            fingerprint=embedder.fingerprint,
            dimension=int(embedder.dimension),
            metric=spec.metric,
            kind=spec.kind,
            recall=spec.recall,
            factory=spec.factory,
            store_id=new_store_id(),
            tokens=_keeps_words(embedder, spec) if tokens is None else bool(tokens),
            symmetric=is_symmetric(embedder),
        )
        try:
            create_store(where, made)
            return Store(where), models
        except StoreExistsError:
            if not exist_ok:
                raise
    if not exist_ok:
        raise StoreExistsError(where)
    store, models = open_store(
        where,
        model,
        read_only=False,
        offline=offline,
        half=half,
        runtime=runtime,
        precision=precision,
    )
    own = store.settings.metric
    if index is not None and spec.metric is not own:
        store.close()
        raise InvalidInputError(
            f"the store {where} compares by {own.value}, which was fixed when it was made; "
            f"take a new store for {spec.metric.value}"
        )
    if tokens is not None and tokens is not store.settings.tokens:
        store.close()
        raise InvalidInputError(
            f"the store {where} keeps {'no' if tokens else 'the'} word vectors; change it with "
            f"attendex tokens {'build' if tokens else 'drop'}"
        )
    return store, models


def _keeps_words(embedder: Embedder, spec: IndexSpec) -> bool:
    """Word vectors are kept where there are any and they are read: only cosines are mixed."""
    return gives_words(embedder) is not None and spec.metric is Metric.COSINE


def create_with(
    path: object,
    made: StoreSettings,
    *,
    offline: bool,
    half: bool,
    runtime: Runtime | str | None,
    precision: Precision | str | None,
) -> tuple[Store, ModelSource]:
    """A new store of given settings; its model is found when it is needed."""
    where = as_path(path)
    ModelSource(
        made.model,
        offline=offline,
        half=half,
        runtime=runtime,
        precision=precision,
        expected=made,
    )
    create_store(where, made)
    return open_store(
        where,
        None,
        read_only=False,
        offline=offline,
        half=half,
        runtime=runtime,
        precision=precision,
    )


def open_store(
    path: object,
    model: str | Embedder | None,
    *,
    read_only: bool,
    offline: bool,
    half: bool,
    runtime: Runtime | str | None,
    precision: Precision | str | None,
) -> tuple[Store, ModelSource]:
    """An existing store and its model, checked if one is given but not loaded."""
    store = Store(as_path(path), read_only=read_only)
    try:
        given = store.settings.model if model is None else model
        models = ModelSource(
            given,
            offline=offline,
            half=half,
            runtime=runtime,
            precision=precision,
            expected=store.settings,
        )
        if model is not None:
            models.identify()
            if not read_only:
                models.remember_place(store)
    except BaseException:
        store.close()
        raise
    return store, models
