"""Explanations of hits, why, and queries made of others: sums, spans, and what is shown of them."""

from __future__ import annotations

import io
import json
import random
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import cli
from engine import AttentionReranker, Document, Engine, Hit, explained, page
from engine.core import explain_texts
from engine.errors import DocumentNotFoundError, InvalidInputError
from engine.types import Explanation, Word
from tests.conftest import DATA
from tests.tokens import HandEmbedder

WORDS = ["apple", "boat", "cafe\u0301", "e\u0301le\u0300ve", "漢字", "👋", "👩‍👩‍👧", "of", "the"]
WORDS += ["q\u0307\u0323x", "\u1112\u1161\u11ab", "ﬁne", "<b>", "&amp;", "sea.", "\n\n", "sun"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=60).map(" ".join)


def usable(text: str) -> bool:
    return any(map(str.isalnum, text))


def check(hit: Hit, document: str) -> None:
    """All that an explanation promises of its sums and spans."""
    found = hit.explanation
    assert found is not None
    assert sum(found.parts.values()) == pytest.approx(hit.score, abs=1e-5)
    assert sum(found.share) == pytest.approx(found.attention_score, abs=1e-5)
    kept = 0.9 if "lexical" in found.parts else 1.0
    assert found.parts["cosine"] == pytest.approx(kept * 0.5 * found.similarity, abs=1e-5)
    assert found.parts["attention"] == pytest.approx(kept * 0.5 * found.attention_score, abs=1e-5)
    assert sum(found.weight) == pytest.approx(1.0, abs=1e-5)
    assert sum(found.heat) == pytest.approx(1.0, abs=1e-5)
    assert sum(found.heat_by_place.values()) == pytest.approx(1.0, abs=1e-5)
    for row in found.attention:
        assert sum(row) == pytest.approx(1.0, abs=1e-5)
    assert document[hit.start : hit.end] == hit.text == found.b
    assert [document[word.start : word.end] for word in found.words_b] == [
        word.text for word in found.words_b
    ]
    if hit.text == document:
        whole = re.findall(r"\w+", unicodedata.normalize("NFC", document))
        assert {unicodedata.normalize("NFC", word.text) for word in found.words_b} <= set(whole)
    assert [found.a[word.start : word.end] for word in found.words_a] == [
        word.text for word in found.words_a
    ]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(TEXTS.filter(usable), min_size=1, max_size=6, unique=True),
    query=TEXTS.filter(usable),
    window=st.sampled_from([None, 6]),
    passages=st.booleans(),
    mode=st.sampled_from(["hybrid", "dense", "lexical"]),
)
def test_explanations_add_up(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    query: str,
    window: int | None,
    passages: bool,
    mode: str,
) -> None:
    path = tmp_path_factory.mktemp("sums") / "s"
    with Engine.create(path, model=HandEmbedder(max_tokens=window)) as engine:
        engine.add([Document(text, f"d{n}") for n, text in enumerate(texts)])
        found = engine.search(query, k=50, mode=mode, rerank=True, explain=True, passages=passages)
        assert mode == "lexical" or len({hit.id for hit in found.hits}) == len(texts)
        for hit in found.hits:
            check(hit, texts[int(hit.id[1:])])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Engine]:
    with Engine.create(tmp_path / "s", model=HandEmbedder()) as engine:
        yield engine


def test_a_long_document_is_explained_to_the_last_digit(tmp_path: Path) -> None:
    chance = random.Random(3)
    texts = [" ".join(chance.choices([f"w{n}" for n in range(50)], k=9000)) for _ in range(2)]
    with Engine.create(tmp_path / "s", model=HandEmbedder(64, max_tokens=400)) as engine:
        engine.add([Document(text, f"d{n}") for n, text in enumerate(texts)])
        for hit in engine.search("w w1", explain=True).hits:
            check(hit, texts[int(hit.id[1:])])
            assert hit.explanation is not None
            assert 15 * 350 < len(hit.explanation.words_b) <= 16 * 400


def test_one_hit_by_hand(store: Engine) -> None:
    """apple answers apple by 1; boat answers it by 0. At temperature .1 that weighs e^10 to 1."""
    store.add([Document("the apple boat", "a", {"n": 1}), Document("sea", "b")])
    (hit,) = store.search("the apple", k=1, mode="dense", explain=True).hits
    found = hit.explanation
    assert found is not None
    big = np.exp(10) / (np.exp(10) + 1)
    assert [word.text for word in found.words_a] == ["apple"]
    assert found.words_b == (Word("apple", 4, 9), Word("boat", 10, 14))
    assert found.attention[0] == pytest.approx((big, 1 - big), abs=1e-5)
    assert found.share[0] == found.match[0] == pytest.approx(big, abs=1e-3)
    assert hit.similarity == pytest.approx(2 / np.sqrt(6))
    assert found.parts["cosine"] == pytest.approx(1 / np.sqrt(6))


@pytest.mark.parametrize("option", [{"attention_temperature": 0.5}, {"mix": 0.3}])
def test_explanations_are_the_reranker_s_own(tmp_path: Path, option: dict[str, float]) -> None:
    reranker = AttentionReranker(**option)
    with Engine.create(tmp_path / "s", model=HandEmbedder(), reranker=reranker) as engine:
        engine.add(["apple avocado boat", "sea sun apple"])
        for hit in engine.search("apple sand", mode="dense", explain=True).hits:
            found = hit.explanation
            assert found is not None
            assert found.temperature == option.get("attention_temperature", 0.1)
            share = option.get("mix", 0.5) * found.attention_score
            assert found.parts["attention"] == pytest.approx(share, abs=1e-6)


def test_hits_without_words_say_so(store: Engine) -> None:
    store.add([Document(id="v", vector=np.ones(512)), Document("apple", "a")])
    (last,) = (hit for hit in store.search("apple", explain=True).hits if hit.id == "v")
    assert last.explanation is None
    assert last.similarity is not None
    store.delete(["a"])
    found = store.search("apple", explain=True)
    assert "there are no word vectors to explain these hits by" in found.notes[0]
    assert found.hits[0].score == found.hits[0].similarity
    assert "no word vectors" in printed(explained.hit(found.hits[0]))


def printed(renderable: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def shared_by_two() -> Explanation:
    """`beta` is in two passages, drawing .2 and .3; `alpha` and `gamma` draw .45 and .05."""
    places = [("alpha", 0), ("beta", 6), ("beta", 6), ("gamma", 11)]
    words = tuple(Word(text, start, start + len(text)) for text, start in places)
    return Explanation(
        a="q",
        b="alpha beta gamma",
        similarity=0.5,
        attention_score=0.4,
        temperature=0.1,
        words_a=(Word("q", 0, 1),),
        words_b=words,
        attention=((0.45, 0.2, 0.3, 0.05),),
        match=(0.4,),
        share=(0.4,),
        heat=(0.45, 0.2, 0.3, 0.05),
        weight=(1.0,),
        parts={"cosine": 0.25, "attention": 0.2},
    )


def test_a_terminal_shades_by_heat() -> None:
    found = shared_by_two()
    spans = [(span.start, span.end, span.style) for span in explained.shaded(found.b, found).spans]
    assert spans == [
        (0, 5, "black on bright_yellow"),
        (6, 10, "black on bright_yellow"),
        (11, 16, "bold yellow"),
    ]
    assert [(one.start, one.end) for one in explained.shaded("beta ga", found, 6).spans] == [(0, 4)]
    shown = printed(explained.hit(Hit(1, "x\x1b", 0.45, 0.5, found.b, {}, explanation=found)))
    assert "0.4500 = cosine 0.2500 + attention 0.2000" in shown
    assert "beta 50%, alpha 45%, gamma 5%" in shown
    assert "the shares sum to the attention score, 0.4000, times 0.50 in the score" in shown
    assert "\x1b" not in shown


class Page(HTMLParser):
    """Tags of a page and the text of its spans; refuses what a page of ours must not hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.spans: list[str] = []
        self.paragraphs: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "link", "iframe", "b")
        assert {name for name, _ in attrs} <= {"style", "title", "class", "lang", "charset"}
        assert not (tag == "span" and "span" in self.open)
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        if tag == "span":
            self.spans.append("")
        if ("class", "text") in attrs:
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "span" in self.open:
            self.spans[-1] += data
        if "p" in self.open and "small" not in self.open:
            self.paragraphs[-1] += data


def test_a_page_is_escaped_and_its_spans_do_not_overlap(store: Engine) -> None:
    evil = "<script>alert(\"1\")</script> <img src=x onerror=y> & 'b' <b>apple</b>"
    store.add([Document(evil, evil), Document('apple "sea"', "b")])
    found = store.search(evil, explain=True)
    read = Page(page.of_results([found]))
    assert read.paragraphs == [hit.text for hit in found.hits]
    assert read.spans[:4] == ["script", "alert", "1", "script"]
    assert evil in [hit.id for hit in found.hits]
    both = Page(page.of_texts(store.explain(evil, "apple"), store.explain("apple", evil)))
    assert both.paragraphs == ["apple", evil]


def test_a_page_shades_what_two_passages_share_by_both() -> None:
    text = page.of_texts(shared_by_two(), shared_by_two())
    assert 'rgba(255,170,0,1.00)" title="heat 0.500">beta<' in text
    assert 'rgba(255,170,0,0.90)" title="heat 0.450">alpha<' in text
    assert Page(text).spans == ["alpha", "beta", "gamma"] * 2


def test_words_that_overlap_or_hold_markup_make_a_sound_page() -> None:
    words = (Word("alpha", 0, 5), Word("ha be", 3, 8), Word("beta", 6, 10), Word("mma", 13, 16))
    found = replace(shared_by_two(), words_b=words, words_a=(Word("<b>", 0, 3),))
    read = Page(page.of_texts(found, found))
    assert read.spans == ["alpha", "beta", "mma"] * 2
    assert read.paragraphs == [found.b] * 2


def test_why(store: Engine) -> None:
    store.add([Document(f"apple w{n}", f"d{n}", {"n": n}) for n in range(60)])
    top = store.why("d3", "apple w3 zebra", k=5)
    assert (top.rank, top.dense_rank, top.lexical_rank) == (1, 1, 1)
    assert top.missing == ("zebra",)
    assert top.reasons[0] == "it is among the first 5, at rank 1"
    assert top.score == store.search("apple w3 zebra", k=5).hits[0].score
    low = store.why("d9", "w3 apple", k=5)
    hits = store.search("w3 apple", k=50).hits
    assert low.rank == next(hit.rank for hit in hits if hit.id == "d9") > 5
    assert low.last_score == hits[4].score
    assert low.reasons[0].startswith(f"it is ranked {low.rank}, ")
    out = store.why("d9", "w3", where="n < 5")
    assert (out.filtered, out.rank, out.dense_rank) == (True, None, None)
    assert out.reasons == ("the filter leaves it out",)
    none = store.why("d59", "unheard", k=3)
    assert none.rank is None
    assert "by words it is not found: it holds none of the query's" in none.reasons
    with pytest.raises(DocumentNotFoundError):
        store.why("nobody", "apple")
    for id_, query in ((5, "a"), ("d1", ""), ("d1", 5)):
        with pytest.raises(InvalidInputError):
            store.why(id_, query)  # type: ignore[arg-type]


def test_why_ranks_a_lexical_search_as_it_is_ranked(store: Engine) -> None:
    store.add([Document("apple apple sea", "often"), Document("apple", "short"), "sun", "sand"])
    hits = store.search("apple", mode="lexical").hits
    for hit in hits:
        found = store.why(hit.id, "apple", mode="lexical")
        assert (found.rank, found.score) == (hit.rank, hit.score)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    minilm: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """A command in an empty directory: its status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTENDEX_STORE", raising=False)

    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        status = cli.run(list(arguments))
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call


@pytest.mark.model
def test_the_command_line_explains(run: Run, tmp_path: Path) -> None:
    status, out, _ = run(
        "explain", "<b>river", "the bank of the river", "--json", "--html", "e.html"
    )
    there, back = explain_texts("<b>river", "the bank of the river"), json.loads(out)["back"]
    assert status == 0
    assert json.loads(out)["share"] == pytest.approx(there.share, abs=1e-6)
    assert [word["text"] for word in back["words_a"]] == ["bank", "river"]
    assert Page((tmp_path / "e.html").read_text()).paragraphs[1] == "<b>river"
    (tmp_path / "notes.txt").write_text("the bank of the river\n\nmoney in the bank\n\na dog barks")
    run("index", "notes.txt")
    status, out, _ = run("query", "river bank", "--explain", "--html", "p.html", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    for row in rows:
        assert sum(row["explanation"]["parts"].values()) == pytest.approx(row["score"], abs=1e-5)
    assert Page((tmp_path / "p.html").read_text()).paragraphs == [row["text"] for row in rows]
    _, out, _ = run("query", "river bank", "--explain", "--table", "-k", "1")
    assert re.search(r"= cosine 0\.\d{4} \+ attention 0\.\d{4} \+ lexical 0\.1000", out)
    asked = ("query", "-", "--table", "--timings")
    status, _, told = run(*asked, stdin="\nbank\n")
    assert status == 1
    assert "query 1: the query is empty" in told
    assert re.search(r"embed [\d.]+ ms, dense .*\(2 queries\)", told)
    assert run("query", "--arithmetic", "king - king")[0] == 2
    assert run("query", "bank", "--like", "nobody")[0] == 1
    assert run("query", "bank", "--not", "dog", "--mass", "0.5")[0] == 2
    status, out, _ = run("why", rows[0]["id"], "river zebra", "--json")
    assert (status, json.loads(out)["missing"]) == (0, ["zebra"])


@pytest.mark.model
@pytest.mark.data
def test_the_words_that_count_most_are_those_that_matter(minilm: Any, tmp_path: Path) -> None:
    """Without its hottest word a hit scores lower than without another one, more often than not."""
    lines = (DATA / "cranfield" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:30]
    texts = [json.loads(line)["text"][:300] for line in lines]
    asked = (DATA / "cranfield" / "queries.jsonl").read_text(encoding="utf-8").splitlines()[:3]
    chance = random.Random(11)
    worse = trials = 0
    with Engine.create(tmp_path / "s", model=minilm) as engine:
        engine.add([Document(text, str(n)) for n, text in enumerate(texts) if text.strip()])
        for query in (json.loads(line)["text"] for line in asked):
            for hit in engine.search(query, k=3, explain=True).hits:
                found = hit.explanation
                assert found is not None
                hottest = found.words_b[int(np.argmax(found.heat))]
                other = chance.choice([w for w in found.words_b if w.text != hottest.text])
                without = [hit.text[: w.start] + hit.text[w.end :] for w in (hottest, other)]
                engine.add([Document(text, f"x{n}") for n, text in enumerate(without)])
                scores = {one.id: one.score for one in engine.search(query, k=50).hits}
                worse += scores["x0"] < scores["x1"]
                trials += 1
                engine.delete(["x0", "x1"])
    assert trials == 9
    assert worse >= 7
