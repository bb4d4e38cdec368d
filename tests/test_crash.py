"""Killed, or out of room, at any moment: nothing is lost and nothing is wrong.

`make crash` does the same more often and prints what became of it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import Document, Engine
from tests.crash.harness import harness
from tests.crash.operations import OPERATIONS

KILLS = 20
FULL = ["index", "index again", "compact", "upgrade", "backup, export"]


def test_nothing_is_lost_and_nothing_is_wrong() -> None:
    names = list(OPERATIONS)
    with harness(seed=11) as work:
        for number in range(KILLS):
            work.kill(names[number % len(names)])
        for name in FULL:
            work.deny(name)
    assert [fault for one in work.tallies.values() for fault in one.faults] == []
    assert sum(one.survived for one in work.tallies.values()) == KILLS + len(FULL)
    assert sum(one.refused for one in work.tallies.values()) > 0


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: any(c.isalnum() for c in text)
)
documents = st.builds(
    Document,
    text=texts,
    id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    metadata=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=3
    ),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(documents, max_size=6, unique_by=lambda document: document.id))
def test_any_document_comes_back_as_it_was(engine: Engine, batch: list[Document]) -> None:
    report = engine.add(batch)
    assert report.documents == len(batch)
    found = engine.get([document.id for document in batch if document.id is not None])
    assert [(d.id, d.text, d.metadata) for d in found] == [
        (d.id, d.text, d.metadata) for d in batch
    ]
    assert engine.add(batch).unchanged == len(batch)
