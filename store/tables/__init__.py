"""The tables. One row is one fact; what can be derived is not stored, except counters that are documented as such.

Money is `ExactDecimal` in USD, times are UTC, sealed columns hold AES-GCM blobs of `store.vault`.
"""

from store.tables.access import ApiKey, Organization, Project
from store.tables.audit import AuditEntry
from store.tables.budgets import Budget, BudgetAlert, BudgetReservation
from store.tables.catalog import ConnectionHealth, OfferRow
from store.tables.connections import Connection, HostKey
from store.tables.inputs import InboxRow, SlotWaiter
from store.tables.installation import AgentScript, ConnectionSweep, Installation, Liveness, OrphanSighting
from store.tables.jobs import IdempotencyKey, Instance, Job, JobEvent, PriceRecord
from store.tables.ledger import BilledDay, BilledResource, LedgerEntry
from store.tables.logs import LogBlob, LogChunk, LogState, LogStream
from store.tables.pricing import StoragePrice
from store.tables.secrets import RetiredKey, Secret, SecretUse
from store.tables.webhooks import Webhook, WebhookDelivery

__all__ = [
    "AgentScript",
    "ApiKey",
    "AuditEntry",
    "BilledDay",
    "BilledResource",
    "Budget",
    "BudgetAlert",
    "BudgetReservation",
    "Connection",
    "ConnectionHealth",
    "ConnectionSweep",
    "HostKey",
    "IdempotencyKey",
    "InboxRow",
    "Installation",
    "Instance",
    "Job",
    "JobEvent",
    "LedgerEntry",
    "Liveness",
    "LogBlob",
    "LogChunk",
    "LogState",
    "LogStream",
    "OfferRow",
    "Organization",
    "OrphanSighting",
    "PriceRecord",
    "Project",
    "RetiredKey",
    "Secret",
    "SecretUse",
    "SlotWaiter",
    "StoragePrice",
    "Webhook",
    "WebhookDelivery",
]
