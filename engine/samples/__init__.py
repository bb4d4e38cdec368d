"""A small real collection to try the engine on: about 1,000 WordNet words with their glosses.

Licence: WORDNET-LICENSE beside this file.
"""

from __future__ import annotations

from pathlib import Path

WORDNET = Path(__file__).with_name("wordnet.tsv")
"""Tab-separated: id, pos, words, definition, example."""
