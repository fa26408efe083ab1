"""Rows for tests, each made of as little as the test wants to say about it."""

from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import Any, TypeVar

from sqlmodel import SQLModel

from domain.clock import Clock
from domain.ids import new_attempt_id, new_id, new_job_id
from domain.offers import Offer
from domain.roles import Role
from domain.spec import ComputeRequest, JobSpec, Limits, Workload
from domain.states import InstanceState, JobState
from store.access import NewKey, create_key, create_organization, create_project
from store.db import Database
from store.tables import Instance, Job, Organization, PriceRecord, Project
from store.vault import Vault

Row = TypeVar("Row", bound=SQLModel)


class Factory:
    """Inserts rows at once and returns them, detached. What a row needs and is not given is made first."""

    def __init__(self, database: Database, clock: Clock, vault: Vault) -> None:
        self._database, self._clock, self._vault = database, clock, vault
        self._numbers = count(1)
        self._organization: Organization | None = None
        self._project: Project | None = None

    def organization(self, name: str | None = None, *, enabled: bool = True) -> Organization:
        name = name or f"org-{next(self._numbers)}"
        return self._database.run_write(lambda s: create_organization(s, name, self._clock(), enabled=enabled))

    def project(self, organization: Organization | None = None, name: str | None = None) -> Project:
        org_id = (organization or self.default_organization()).id
        name = name or f"project-{next(self._numbers)}"
        return self._database.run_write(lambda s: create_project(s, org_id, name, self._clock()))

    def key(
        self,
        organization: Organization | None = None,
        *,
        role: Role = Role.MEMBER,
        owner: str = "someone",
        project: Project | None = None,
    ) -> NewKey:
        """A key with its token."""
        org_id = (organization or self.default_organization()).id
        project_id = project.id if project else None
        return self._database.run_write(
            lambda s: create_key(s, org_id, owner, role, self._clock(), project_id=project_id)
        )

    def default_organization(self) -> Organization:
        """The organization of everything that names none."""
        self._organization = self._organization or self.organization()
        return self._organization

    def default_project(self) -> Project:
        """The project of every job that names none."""
        self._project = self._project or self.project()
        return self._project

    def job(
        self,
        state: JobState = JobState.REQUESTED,
        *,
        project: Project | None = None,
        workload: Workload | None = None,
        limits: Limits | None = None,
        **columns: Any,
    ) -> Job:
        """A job in `state`, with whatever further columns are given."""
        project = project or self.default_project()
        job_id = new_job_id()
        spec = JobSpec(
            image="registry.example/app:1",
            compute=ComputeRequest(accelerator="cpu-general", gpu_count=0, vcpu_count=1, ephemeral_disk_gb=1),
            limits=limits or Limits(),
        )
        workload = workload or Workload(argv=("true",))
        defaults: dict[str, Any] = {
            "id": job_id,
            "org_id": project.org_id,
            "project_id": project.id,
            "key_id": new_id("key"),
            "spec": spec.model_dump(mode="json"),
            "workload_sealed": self._vault.seal(workload.model_dump_json().encode(), f"workload:{job_id}"),
            "state": state.value,
            "created_at": self._clock(),
        }
        return self._insert(Job(**(defaults | columns)))

    def instance(
        self, job: Job, state: InstanceState = InstanceState.REQUESTED, *, number: int = 1, **columns: Any
    ) -> Instance:
        """An attempt of `job`, with whatever further columns are given."""
        offer = self.offer()
        defaults: dict[str, Any] = {
            "id": new_attempt_id(),
            "job_id": job.id,
            "org_id": job.org_id,
            "number": number,
            "connection_id": offer.connection_id,
            "provider": offer.provider,
            "offer": offer.model_dump(mode="json"),
            "state": state.value,
            "created_at": self._clock(),
        }
        return self._insert(Instance(**(defaults | columns)))

    def price(self, instance: Instance, usd_per_hour: str, since: datetime | None = None) -> PriceRecord:
        return self._insert(
            PriceRecord(
                instance_id=instance.id,
                since=since or self._clock(),
                usd_per_hour=Decimal(usd_per_hour),
                source="test",
            )
        )

    def offer(self, **fields: Any) -> Offer:
        """An offer, stored nowhere."""
        defaults: dict[str, Any] = {
            "id": "offer-1",
            "provider": "local",
            "connection_id": "local",
            "provider_sku": "cpu",
            "accelerator": "cpu-general",
            "gpu_count": 0,
            "vcpus": 2,
            "memory_gb": 8,
            "ephemeral_disk_gb": 10,
            "price_usd_hr": Decimal("0.10"),
            "observed_at": self._clock(),
        }
        return Offer(**(defaults | fields))

    def _insert(self, row: Row) -> Row:
        self._database.run_write(lambda session: session.add(row))
        return row
