"""Models behind an HTTP endpoint that speaks OpenAI's embeddings API, hosted or on this machine.

The texts go there and nowhere else, with a key only where this process's environment has one for
that very host: a store may name any endpoint, and must not be able to send a key to it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from engine.arrays import Float32Array
from engine.embedding.plain import PASSAGE, PlainEmbedder
from engine.errors import InvalidInputError, ModelError, ModelUnavailableError
from engine.files import Mutex
from engine.settings import ENDPOINT
from engine.vectors import from_model

if TYPE_CHECKING:
    import httpx2

DEFAULT_BASE = "https://api.openai.com/v1"
BATCH = 32
"""Texts of a request at most."""
CHARACTERS = 1 << 16
"""Characters of a request at most, but for a text that is longer by itself."""
SECONDS = 60.0
TRIES = 5
_BACKOFF_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 60.0
_AGAIN = {408, 429, 500, 502, 503, 504}
_SHOWN = 200
_GREATEST = 3e38
"""Of a number that float32 holds."""
_PROBE = "attendex"


def parse(name: str) -> tuple[str, str]:
    """The model and the base URL of `openai:MODEL@URL`; without a URL, OpenAI's own.

    Raises `InvalidInputError`.
    """
    rest = name.removeprefix(ENDPOINT)
    at = max(rest.rfind("@https://"), rest.rfind("@http://"))
    model, base = (rest, DEFAULT_BASE) if at < 0 else (rest[:at], rest[at + 1 :])
    return _model(model), _base(base)


def fingerprint(model: str, dimension: int) -> str:
    """The identity of a model behind an endpoint; see `HttpEmbedder`."""
    summed = hashlib.sha256(json.dumps([model, dimension]).encode())
    return f"openai-{summed.hexdigest()}"


def key_variable(base_url: str) -> str:
    """The environment variable that holds the key for a URL's host.

    `ATTENDEX_KEY_API_OPENAI_COM` for api.openai.com; a hyphen is written as two underscores, so
    that no two host names share one.
    """
    host = urlsplit(base_url).hostname or ""
    plain = host.replace("_", "___").replace("-", "__").replace(".", "_").replace(":", "_")
    return f"ATTENDEX_KEY_{plain.upper()}"


class HttpEmbedder(PlainEmbedder):
    """An `Embedder` of `POST {base_url}/embeddings`; safe to share between threads.

    `dimension` None asks for the vector of one word to learn it. Texts are measured as
    `PlainEmbedder` does, and sent `batch` at a time, one request after the other. A request that
    is refused for the moment (status 408, 429, 5xx), or whose connection broke, is sent again, at
    most `tries` times in all, after as long as `Retry-After` says (up to a minute), else after
    `backoff` seconds, doubled each time. `timeout` is in seconds, of connecting and of each read.
    The key is read from the environment (`key_variable`) and sent over https, or to this machine.

    The fingerprint is of the model's name and the dimension, not of its vectors: hosted models
    give the same text vectors that differ in the last digits from call to call, so a hash of
    them, however rounded, would now and then lock a store's owner out. Nor is it of the URL: a
    model that moved is the same. That two servers mean the same by a name is for the user to know.

    Raises `ModelUnavailableError` where the endpoint cannot be reached, `ModelError` for its
    refusals and for replies that are no such vectors, `InvalidInputError` for a URL that is none.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        dimension: int | None = None,
        max_tokens: int | None = PASSAGE,
        batch: int = BATCH,
        timeout: float = SECONDS,
        tries: int = TRIES,
        backoff: float = _BACKOFF_SECONDS,
    ) -> None:
        self._base, self._model = _base(base_url), _model(model)
        name = f"{ENDPOINT}{self._model}@{self._base}"
        if batch < 1 or tries < 1 or not timeout > 0 or not backoff >= 0:
            raise InvalidInputError(
                f"{name} needs a batch and tries of at least 1, a timeout above 0 and a backoff of "
                "0 or more seconds"
            )
        self._batch, self._tries, self._backoff = batch, tries, backoff
        self._has_answered = False
        self._client = _client(timeout)
        if dimension is None:
            self.name = name
            dimension = len(self._request([_PROBE])[0])
        super().__init__(
            name,
            dimension,
            self._embed,
            fingerprint=fingerprint(self._model, dimension),
            max_tokens=max_tokens,
        )

    def _embed(self, texts: list[str]) -> Float32Array:
        none = np.empty((0, self.dimension), np.float32)
        return np.concatenate([none, *map(self._request, _batches(texts, self._batch))])

    def _request(self, texts: list[str]) -> Float32Array:
        """The vectors (n, d) of the texts of one request."""
        rows = _rows(self._replied(texts), len(texts), self.name)
        width = getattr(self, "dimension", None)
        if width is not None and len(rows[0]) != width:
            raise ModelError(
                f"{self.name} gave vectors of dimension {len(rows[0])}, and they were of {width}: "
                "it is another model now"
            )
        return from_model(rows, len(texts), len(rows[0]), self.name)

    def _replied(self, texts: list[str]) -> Any:
        """The JSON of the reply, after as many tries as it takes."""
        import httpx2

        tried = 0
        while True:
            tried += 1
            wait = self._backoff * 2 ** (tried - 1) * random.uniform(0.5, 1.0)
            try:
                reply = self._client.post(
                    f"{self._base}/embeddings",
                    json={"model": self._model, "input": texts},
                    headers=self._headers(),
                )
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                if tried == self._tries or not self._may_come_back(error):
                    reason = self._without_key(str(error) or type(error).__name__)
                    raise ModelUnavailableError(
                        f"{self.name} cannot be reached: {reason}"
                    ) from None
            else:
                self._has_answered = True
                if reply.status_code not in _AGAIN:
                    return self._body(reply)
                wait = _retry_after(reply, wait)
                if tried == self._tries or wait > _LONGEST_WAIT_SECONDS:
                    raise ModelUnavailableError(
                        f"{self.name} refused {'once' if tried == 1 else f'{tried} times'}, at "
                        f"last with status {reply.status_code}{self._said(reply)}; try again later"
                    )
            time.sleep(wait)

    def _may_come_back(self, error: Exception) -> bool:
        """A connection broke, or cannot be made to what has answered before."""
        import httpx2

        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return self._has_answered
        return isinstance(error, httpx2.TransportError)

    def _body(self, reply: httpx2.Response) -> Any:
        if reply.status_code in (401, 403):
            raise ModelError(
                f"{self.name} refused the key (status {reply.status_code}); put the key of that "
                f"host into the environment variable {key_variable(self._base)}"
            )
        if reply.status_code != 200:
            raise ModelError(
                f"{self.name} answered with status {reply.status_code}{self._said(reply)}"
            )
        try:
            return reply.json()
        except (ValueError, RecursionError):
            raise ModelError(f"{self.name} gave a reply that is no JSON") from None

    def _said(self, reply: httpx2.Response) -> str:
        """What the server says went wrong, on one line, in brackets; nothing where it does not."""
        try:
            found = reply.json()
            error = found["error"]
            said = error["message"] if isinstance(error, dict) else error
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""
        line = " ".join(self._without_key(str(said)).split())[:_SHOWN]
        return f" ({line})" if line else ""

    def _headers(self) -> dict[str, str]:
        key = self._key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _key(self) -> str:
        variable = key_variable(self._base)
        key = os.environ.get(variable, "").strip()
        if not key:
            return ""
        if not key.isascii() or not key.isprintable():
            raise ModelError(f"the key in {variable} holds characters that no key has")
        if not _is_private(self._base):
            raise ModelError(
                f"the key in {variable} is not sent over plain http to another machine; use https"
            )
        return key

    def _without_key(self, text: str) -> str:
        key = os.environ.get(key_variable(self._base), "").strip()
        return text.replace(key, "…") if key else text


_loaded: dict[tuple[str, int | None], HttpEmbedder] = {}
_loading = Mutex()


def load(name: str, dimension: int | None) -> HttpEmbedder:
    """The embedder of a name as `parse` reads it, one for the process."""
    model, base = parse(name)
    with _loading:
        key = (f"{model}@{base}", dimension)
        if key not in _loaded:
            _loaded[key] = HttpEmbedder(base, model, dimension=dimension)
        return _loaded[key]


def _client(timeout: float) -> httpx2.Client:
    if find_spec("httpx2") is None:
        raise ModelUnavailableError(
            "a model behind an endpoint needs httpx2: pip install 'attendex[http]'"
        )
    import httpx2

    return httpx2.Client(timeout=timeout)


def _model(model: str) -> str:
    if not model or model != model.strip() or not model.isprintable():
        raise InvalidInputError(
            f"{model!r} is no model of an endpoint; name it as {ENDPOINT}MODEL@https://host/v1"
        )
    return model


def _base(url: str) -> str:
    """The URL without a slash at its end. Not shown in errors: it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    sound = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if not sound or "@" in parts.netloc or parts.query or parts.fragment or not url.isprintable():
        raise InvalidInputError(
            "an endpoint is a URL like https://host/v1, without user, password, query and fragment"
        )
    return url.rstrip("/")


def _is_private(base: str) -> bool:
    """What is sent there can be read by nobody on the way: it is encrypted, or stays here."""
    parts = urlsplit(base)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _batches(texts: Sequence[str], most: int) -> Iterator[list[str]]:
    some: list[str] = []
    characters = 0
    for text in texts:
        if some and (len(some) == most or characters + len(text) > CHARACTERS):
            yield some
            some, characters = [], 0
        some.append(text)
        characters += len(text)
    if some:
        yield some


def _rows(reply: Any, count: int, name: str) -> list[list[float]]:
    """The vectors in the order of the texts, all of one width. Raises `ModelError`."""
    try:
        given = {item["index"]: item["embedding"] for item in reply["data"]}
        number = len(reply["data"])
    except (KeyError, TypeError):
        raise ModelError(f"{name} gave a reply without embeddings") from None
    if number != count or set(given) != set(range(count)):
        raise ModelError(f"{name} gave {number} vectors for {count} texts, or misnumbered them")
    rows = [given[place] for place in range(count)]
    for row in rows:
        if not isinstance(row, list) or not row or not all(type(n) in (int, float) for n in row):
            raise ModelError(f"{name} gave a vector that is no list of numbers")
    if len({len(row) for row in rows}) > 1:
        raise ModelError(f"{name} gave vectors of several dimensions for one request")
    try:
        finite = all(abs(float(n)) < _GREATEST for row in rows for n in row)
    except OverflowError:
        finite = False
    if not finite:
        raise ModelError(f"{name} gave a vector with a number that is not finite")
    return rows


def _retry_after(reply: httpx2.Response, otherwise: float) -> float:
    """Seconds until the server wants to be asked again (RFC 9110, 10.2.3)."""
    said = reply.headers.get("Retry-After", "").strip()
    if said.isascii() and said.isdigit():
        return float(said)
    try:
        then = parsedate_to_datetime(said)
    except (ValueError, TypeError):
        return otherwise
    zoned = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.now(UTC)).total_seconds())
