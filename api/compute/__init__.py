"""The Compute API, `/api/v1/compute`."""

from fastapi import APIRouter

from api.compute import (
    accelerators,
    backend_host_keys,
    backends,
    budgets,
    history,
    jobs,
    not_implemented,
    offers,
    pricing,
    providers,
    quotes,
    rerun,
    secrets,
    tenants,
    usage,
    webhooks,
)

router = APIRouter(prefix="/api/v1/compute")
for part in (
    accelerators,
    offers,
    providers,
    quotes,
    jobs,
    rerun,
    history,
    secrets,
    tenants,
    usage,
    pricing,
    budgets,
    webhooks,
    not_implemented,
):
    router.include_router(part.router)

cloud_router = APIRouter(prefix="/api/compute/cloud")
"""What the console's page of that path shows."""
cloud_router.include_router(backends.router)
cloud_router.include_router(backend_host_keys.router)
