"""The ledger: what instances have cost, in runs of whole billable units that never change."""

from datetime import datetime
from decimal import Decimal

from sqlalchemy import BigInteger, Column, Index, String, UniqueConstraint
from sqlmodel import Field, SQLModel

from store.append_only import append_only
from store.columns import ExactDecimal, UtcDateTime
from store.tables import fields


def _big() -> Column[int]:
    return Column(BigInteger, nullable=False)


class LedgerEntry(SQLModel, table=True):
    """Consecutive billable units of one instance at one price, all of which begin on one UTC day.

    The cost is kept as an exact integer, (USD per hour) x seconds, in three parts that a database can add up: whole,
    10^-9 and 10^-18.
    """

    __tablename__ = "ledger_entry"
    __table_args__ = (
        UniqueConstraint("instance_id", "begins_at"),
        # A window's sum is answered from this index alone, in its order.
        Index(
            "ix_ledger_window",
            "org_id",
            "resource_type",
            "begins_at",
            "last_at",
            "project_id",
            "whole",
            "nano",
            "atto",
        ),
        Index("ix_ledger_resource", "resource_id", "begins_at"),
    )

    id: int | None = fields.serial()
    org_id: str
    project_id: str
    resource_type: str
    """`job`; services and volumes are to come."""
    resource_id: str
    instance_id: str
    begins_at: datetime = fields.time(nullable=False)
    last_at: datetime = fields.time(nullable=False)
    """When the last unit of the run begins."""
    units: int
    unit_seconds: int
    usd_per_hour: Decimal = Field(sa_column=Column(ExactDecimal, nullable=False))
    whole: int = Field(sa_column=_big())
    nano: int = Field(sa_column=_big())
    atto: int = Field(sa_column=_big())
    written_at: datetime = fields.time(nullable=False)


class BilledResource(SQLModel, table=True):
    """The span of a resource's ledger entries, so that lists and counts need not read them. Derived; it only grows."""

    __tablename__ = "billed_resource"
    __table_args__ = (
        Index("ix_billed_page", "org_id", "resource_at", "resource_id"),
        # The resources of a window are counted in this index alone.
        Index("ix_billed_window", "org_id", "last_at", "begins_at", "project_id", "resource_type"),
    )

    # Ordered by its characters' codes everywhere, as Python orders strings.
    resource_id: str = Field(sa_column=Column(String(collation="C").with_variant(String(), "sqlite"), primary_key=True))
    resource_type: str
    org_id: str
    project_id: str
    resource_at: datetime = fields.time(nullable=False)
    """When the resource was created: the newest come first in reports."""
    begins_at: datetime = fields.time(nullable=False)
    """When the first billed unit of any of its instances begins."""
    last_at: datetime = fields.time(nullable=False)


class BilledDay(SQLModel, table=True):
    """What the ledger's entries of a UTC day add up to, so that reports need not read them. Derived; it only grows."""

    __tablename__ = "billed_day"

    org_id: str = Field(primary_key=True)
    resource_type: str = Field(primary_key=True)
    day: datetime = Field(sa_column=Column(UtcDateTime, primary_key=True))
    """Its first moment."""
    project_id: str = Field(primary_key=True)
    whole: int = Field(sa_column=_big())
    nano: int = Field(sa_column=_big())
    atto: int = Field(sa_column=_big())


append_only(LedgerEntry)
