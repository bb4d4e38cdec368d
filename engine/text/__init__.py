"""Files to documents, documents to passages, and the Unicode rules both follow."""
