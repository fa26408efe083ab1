"""The schema's history, run by `store.schema`. `python -m store.migrations` writes revisions."""
