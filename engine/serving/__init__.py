"""The resident helper: a process that keeps a store, its model and its index open, and answers."""
