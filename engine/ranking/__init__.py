"""Attention: the maths, the rerank stage, and what it says of a result."""
