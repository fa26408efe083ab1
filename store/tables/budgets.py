"""Budgets, what jobs have reserved of them, and the alerts that they raised."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Column, UniqueConstraint
from sqlmodel import Field, SQLModel

from store.columns import ExactDecimal
from store.tables import fields


class Budget(SQLModel, table=True):
    """What an organization may spend, or one of its projects, or one of its users, or a user within a project."""

    __table_args__ = (UniqueConstraint("org_id", "project_id", "owner", "period"),)

    id: str = Field(primary_key=True)
    org_id: str
    project_id: str = ""
    """Empty: of all projects. NULL would not be unique."""
    owner: str = ""
    """The owner of the keys that the jobs were created with; empty: of all."""
    period: str
    """`domain.budgets.BudgetPeriod`."""
    amount_usd: Decimal = Field(sa_column=Column(ExactDecimal, nullable=False))
    alert_percents: list[int] = fields.json(nullable=False)
    version: int = 1
    """Its ETag: 1 more with each change."""
    created_at: datetime = fields.time(nullable=False)
    updated_at: datetime = fields.time(nullable=False)


class BudgetReservation(SQLModel, table=True):
    """What a job reserved when it was created under at least one budget. What it holds now is derived."""

    job_id: str = Field(primary_key=True)
    rate_seconds: Decimal = Field(sa_column=Column(ExactDecimal, nullable=False))
    """(USD per hour) x seconds, as costs are: what is derived from them need not be a finite number of USD."""


class BudgetAlert(SQLModel, table=True):
    """What a budget told, once for each window and amount."""

    __table_args__ = (UniqueConstraint("budget_id", "window_start", "kind", "percent", "amount_usd"),)

    id: str = Field(primary_key=True)
    budget_id: str
    org_id: str
    window_start: datetime = fields.time(nullable=False)
    kind: str
    """`domain.budgets.AlertKind`."""
    percent: int
    amount_usd: Decimal = Field(sa_column=Column(ExactDecimal, nullable=False))
    spent_usd: Decimal = Field(sa_column=Column(ExactDecimal, nullable=False))
    """To cents."""
    data: dict[str, Any] = fields.json(nullable=False)
    at: datetime = fields.time(nullable=False)
