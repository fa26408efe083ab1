"""The Compute API, `/api/v1/compute`."""

from fastapi import APIRouter

from api.compute import accelerators, history, jobs, not_implemented, offers, providers, quotes, rerun, secrets, tenants

router = APIRouter(prefix="/api/v1/compute")
for part in (accelerators, offers, providers, quotes, jobs, rerun, history, secrets, tenants, not_implemented):
    router.include_router(part.router)
