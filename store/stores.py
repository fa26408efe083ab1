"""What every process of ours opens to reach its state, by one recipe: API and worker must agree on it."""

from dataclasses import dataclass

from domain.clock import Clock
from settings import Settings
from store.db import Database
from store.logs.blobs import BlobStore, open_blob_store
from store.logs.store import LogStore
from store.master_key import FileKeys, SettingKeys, source_of
from store.vault import Vault


@dataclass(frozen=True, slots=True)
class Stores:
    db: Database
    vault: Vault
    blobs: BlobStore
    logs: LogStore


def key_source(settings: Settings) -> SettingKeys | FileKeys:
    """Where the master keys of `settings` are."""
    text = settings.master_key.get_secret_value() if settings.master_key else None
    return source_of(text, settings.key_file, settings.master_key_kms)


def open_stores(settings: Settings, clock: Clock) -> Stores:
    """The database, the keys and the log store of `settings`. Close `db` in the end.

    Raises:
        VaultError: there is no master key, or it is none.
    """
    vault = Vault.of(key_source(settings))
    db = Database(settings.sqlalchemy_url)
    blobs = open_blob_store(settings.segment_url, s3_endpoint_url=settings.s3_endpoint_url)
    logs = LogStore(db, blobs, clock, max_bytes=settings.log_max_bytes, retention_days=settings.log_retention_days)
    return Stores(db, vault, blobs, logs)
