"""The Admin API, `/api/v1/admin`: organizations, projects, keys and the audit log. An extension of ours.

An organization's admin manages its own organization, a cluster admin all of them; what belongs to another one is
answered as if it did not exist.
"""

from fastapi import APIRouter

from api.admin import audit, keys, organizations, orphans, projects

router = APIRouter(prefix="/api/v1/admin")
for part in (organizations, projects, keys, audit, orphans):
    router.include_router(part.router)
