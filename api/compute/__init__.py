"""The Compute API, `/api/v1/compute`."""

from fastapi import APIRouter

from api.compute import accelerators, history, jobs, not_implemented, rerun, secrets

router = APIRouter(prefix="/api/v1/compute")
for part in (accelerators, jobs, rerun, history, secrets, not_implemented):
    router.include_router(part.router)
