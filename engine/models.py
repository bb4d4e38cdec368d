"""Which model a store is opened with, found and checked before it is loaded."""

from __future__ import annotations

import logging
import os
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from engine.embedding.base import Embedder
from engine.errors import (
    InvalidInputError,
    ModelError,
    ModelMismatchError,
    ModelUnavailableError,
)
from engine.files import Mutex
from engine.settings import ENDPOINT, Precision, Runtime
from engine.storage.records import StoreSettings
from engine.storage.store import Store

if TYPE_CHECKING:
    from engine.embedding.locate import LocatedModel
    from engine.embedding.sentence_transformer import SentenceTransformerEmbedder

log = logging.getLogger("attendex")
Choice = TypeVar("Choice", bound=Enum)


class ModelSource:
    """A model by name or object, loaded at first use.

    With `expected` settings, a model of another fingerprint raises `ModelMismatchError`, and so
    does another `precision`; None is that of the settings, else float32.
    """

    def __init__(
        self,
        model: str | Embedder,
        *,
        offline: bool = False,
        half: bool = False,
        runtime: Runtime | str | None = None,
        precision: Precision | str | None = None,
        expected: StoreSettings | None = None,
    ) -> None:
        if isinstance(model, os.PathLike):
            model = str(model)
        if not isinstance(model, str | Embedder):
            raise InvalidInputError(
                f"a model is a name, a path or an object like engine.Embedder, not {model!r}"
            )
        self._model = model
        self._offline = offline
        self._half = half
        self._runtime = as_member(Runtime, "runtime", runtime) or Runtime.AUTO
        self._expected = expected
        self.precision = self._precision(as_member(Precision, "precision", precision))
        self._loaded: Embedder | None = None if isinstance(model, str) else model
        self._found: tuple[LocatedModel, str] | None = None
        self._lock = Mutex()

    def _precision(self, asked: Precision | None) -> Precision:
        """The one to use: the store's, which no other may be asked of, else the one asked for."""
        own = None
        if self._expected is not None:
            own = Precision.of(self._expected.fingerprint)
            if self._expected.custom:
                own = Precision.FLOAT32
            if asked is not None and asked is not own:
                raise ModelMismatchError(
                    store_model=f"{self._expected.model} in {own.value}",
                    given_model=f"{self._model} in {asked.value}",
                )
        found = own or asked or Precision.FLOAT32
        if found is Precision.INT8:
            if self._half:
                raise InvalidInputError(
                    "half is 16 bit on a GPU and int8 is 8 bit on the CPU: give one of them"
                )
            if self._runtime is Runtime.SENTENCE_TRANSFORMERS:
                raise InvalidInputError(
                    "int8 is run by onnxruntime, not by sentence-transformers: leave the runtime "
                    "to auto"
                )
            if asked is not None and not isinstance(self._model, str):
                raise _no_int8(self._model.name)
        return found

    @property
    def is_custom(self) -> bool:
        """The caller's own object, which no name finds again."""
        return not isinstance(self._model, str)

    def identify(self) -> str:
        """Find the model without loading it, check it, and return its name."""
        if not isinstance(self._model, str):
            self._check(self._model.name, self._model.fingerprint)
            return self._model.name
        if self._is_plugin:
            self._plugin(self._model)
            return self._model
        if self._is_endpoint:
            return self._endpoint_name(self._model)
        return self._find(self._model)[0].name

    @property
    def given(self) -> str:
        """The model's name, as it was given."""
        return self._model if isinstance(self._model, str) else self._model.name

    @property
    def is_loaded(self) -> bool:
        """The model is there already."""
        return self._loaded is not None

    def load(self) -> Embedder:
        """The model, ready to embed. Raises `ModelError`s."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load(str(self._model))
            elif self.is_custom:
                self._check(self._loaded.name, self._loaded.fingerprint)
            return self._loaded

    def _load(self, name: str) -> Embedder:
        if self._expected is not None and self._expected.custom and name == self._expected.model:
            raise ModelUnavailableError(
                f"this store was embedded by the program's own embedder '{name}'; "
                "open it with Engine.open(path, model=embedder)"
            )
        if self._is_plugin:
            return self._plugin(name)
        if self._is_endpoint:
            return self._endpoint(name)
        if self.precision is Precision.INT8:
            return self._in_int8(name)
        from engine.embedding import exports

        by_onnx = self._runtime is not Runtime.SENTENCE_TRANSFORMERS and not self._half
        if by_onnx and exports.is_runnable() and (exported := self._exported(name)) is not None:
            return exported
        from engine.embedding import sentence_transformer

        located, identity = self._find(name)
        embedder = sentence_transformer.load(located, identity, half=self._half)
        return self._made_runnable(embedder) if by_onnx else embedder

    @property
    def _is_plugin(self) -> bool:
        from engine.embedding import plugins

        name = self._model
        return isinstance(name, str) and not os.path.isdir(name) and plugins.is_known(name)

    def _plugin(self, name: str) -> Embedder:
        from engine.embedding import plugins

        if self.precision is Precision.INT8:
            raise _no_int8(name)
        found = plugins.load(name)
        self._check(found.name, found.fingerprint)
        return found

    @property
    def _is_endpoint(self) -> bool:
        return isinstance(self._model, str) and self._model.startswith(ENDPOINT)

    def _endpoint_name(self, name: str) -> str:
        """The endpoint's whole name, checked; nothing is asked of it."""
        from engine.embedding import endpoint

        model, base = endpoint.parse(name)
        if self.precision is Precision.INT8:
            raise _no_int8(name)
        if self._expected is not None:
            self._check(name, endpoint.fingerprint(model, self._expected.dimension))
        return f"{ENDPOINT}{model}@{base}"

    def _endpoint(self, name: str) -> Embedder:
        from engine.embedding import endpoint

        full = self._endpoint_name(name)
        if self._offline:
            raise ModelUnavailableError(f"{full} is asked over the network, and this is offline")
        return endpoint.load(full, None if self._expected is None else self._expected.dimension)

    def _exported(self, name: str) -> Embedder | None:
        """The model in onnxruntime, where an export is at hand; its own files are not looked for
        where the store says which model it is."""
        from engine.embedding import exports

        own = self._expected is not None and name == self._expected.model and self._found is None
        if own and self._expected is not None:
            full, identity = self._expected.model, self._expected.fingerprint
        else:
            located, identity = self._find(name)
            full = located.name
        export = exports.find(identity)
        if export is None:
            return None
        from engine.embedding import onnx

        return onnx.load(full, identity, export)

    def _in_int8(self, name: str) -> Embedder:
        """The model's copy in int8 in onnxruntime, made now where it is not at hand."""
        from engine.embedding import exports

        if exports.is_installed() and (exported := self._exported(name)) is not None:
            return exported
        located, identity = self._find(name)
        if not exports.can_quantise():
            raise ModelUnavailableError(
                f"{located.name} in int8 needs onnxruntime and onnx: pip install 'attendex[onnx]'"
            )
        from engine.embedding import onnx, quantised
        from engine.embedding.fingerprint import fingerprint

        made = quantised.prepare(located, fingerprint(located.path))
        return onnx.load(located.name, identity, made)

    def _made_runnable(self, embedder: SentenceTransformerEmbedder) -> Embedder:
        """The model in onnxruntime, exported now, once; itself where that cannot be."""
        from engine.embedding import exports

        wanted = self._runtime is Runtime.ONNX
        if not exports.is_makeable():
            if wanted:
                raise ModelUnavailableError(
                    "the onnx runtime needs onnxruntime and onnx, and a machine without a GPU: "
                    "pip install 'attendex[onnx]'"
                )
            return embedder
        can_keep = exports.can_keep()
        if not can_keep:
            log.warning(
                "the cache %s cannot be written: %s is loaded whole every time; set ATTENDEX_CACHE",
                *(exports.cache(), embedder.name),
            )
        if not wanted and (not can_keep or exports.refusal(embedder.fingerprint) is not None):
            return embedder
        from engine.embedding import export, onnx

        log.warning("preparing %s for onnxruntime, once, for quick starts", embedder.name)
        made = export.make(embedder)
        if not isinstance(made, str):
            return onnx.load(embedder.name, embedder.fingerprint, made)
        if wanted:
            raise ModelError(f"the model {embedder.name} cannot be exported: {made}")
        log.info("the model %s stays with sentence-transformers: %s", embedder.name, made)
        return embedder

    @property
    def runtime(self) -> str:
        """What runs the model, or would run it now, without loading it."""
        from engine.embedding import exports

        if self.is_custom or (self._expected is not None and self._expected.custom):
            return "custom"
        if self._is_plugin:
            return "plugin"
        if self._is_endpoint:
            return "HTTP"
        if self._loaded is not None:
            return str(getattr(self._loaded, "runtime", "custom"))
        if self.precision is Precision.INT8:
            return exports.NAME
        at_hand = (
            self._runtime is not Runtime.SENTENCE_TRANSFORMERS
            and not self._half
            and self._expected is not None
            and exports.is_runnable()
            and exports.find(self._expected.fingerprint) is not None
        )
        return exports.NAME if at_hand else str(Runtime.SENTENCE_TRANSFORMERS.value)

    @property
    def cosine(self) -> tuple[float, float] | None:
        """Of the model's vectors in int8 and in float32, on average and at least, as measured when
        its copy was made; None in float32, and where this machine has no copy yet."""
        from engine.embedding import exports

        known = self._loaded if self._expected is None else self._expected
        if self.precision is Precision.FLOAT32 or known is None:
            return None
        found = exports.find(known.fingerprint)
        return None if found is None else found.cosine

    def _find(self, name: str) -> tuple[LocatedModel, str]:
        """The model's files and fingerprint, checked; hashed once, however often it is asked."""
        if self._found is None:
            from engine.embedding.fingerprint import fingerprint
            from engine.embedding.locate import locate

            located = locate(name, offline=self._offline, on_notice=log.warning)
            self._found = located, self.precision.marked(fingerprint(located.path))
        located, identity = self._found
        self._check(located.name, identity)
        return located, identity

    def _check(self, name: str, fingerprint: str) -> None:
        if self._expected is not None and fingerprint != self._expected.fingerprint:
            raise ModelMismatchError(store_model=self._expected.model, given_model=name)

    def remember_place(self, store: Store) -> None:
        """Keep this model's name as the store's, where the store's own finds it no more."""
        own = store.settings
        if own.custom or self.is_custom or self._model == own.model or _is_here(own.model):
            return
        with store.lock.held():
            store.rename_model(self.identify())


def as_member(kind: type[Choice], name: str, value: object) -> Choice | None:
    """A member of an enum by value or itself; None stays None. Raises `InvalidInputError`."""
    try:
        return None if value is None else kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidInputError(f"unknown {name} {value!r}; choose one of: {known}") from None


def _no_int8(name: str) -> ModelError:
    return ModelError(
        f"int8 is for sentence-transformers models by name or path, and {name} is none: leave the "
        "precision out"
    )


def _is_here(name: str) -> bool:
    """The model of that name can be had without fetching anything."""
    from engine.embedding import plugins
    from engine.embedding.locate import locate

    if plugins.is_known(name):
        return True
    try:
        locate(name, offline=True)
    except ModelUnavailableError:
        return False
    return True
