"""Nearest neighbours: the index contract, FAISS behind it, torch for batches, the snapshot."""
