"""Durable logs: made into lines at ingest, hot in the database, sealed into compressed segments in a blob store."""
