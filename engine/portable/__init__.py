"""Stores as files that other programs read too: JSON lines and parquet."""
