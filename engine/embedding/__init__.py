"""Texts to vectors: the protocol, the model's whereabouts and identity, and the adapter."""
