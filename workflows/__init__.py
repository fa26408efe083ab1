"""Deterministic orchestration: one file a workflow, import-light."""
