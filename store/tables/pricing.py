"""Versions of what volume storage costs."""

from datetime import datetime
from decimal import Decimal

from sqlalchemy import Column, Integer
from sqlmodel import Field, SQLModel

from store.append_only import append_only
from store.columns import ExactDecimal
from store.tables import fields


class StoragePrice(SQLModel, table=True):
    """A version of the price of volume storage; the newest one that is in effect counts."""

    __tablename__ = "storage_price"

    version: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    usd_per_gib_hour: Decimal = Field(sa_column=Column(ExactDecimal, nullable=False))
    effective_at: datetime = fields.time(nullable=False)
    created_at: datetime = fields.time(nullable=False)
    key_id: str
    """The key that set it."""


append_only(StoragePrice)
