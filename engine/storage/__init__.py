"""The truth: schema, database, filters, and the store that reads and writes it."""
