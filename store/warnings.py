"""What an administrator should see to, though the control plane works: told at the start and by `/readyz`."""

from sqlmodel import Session

from domain.backends import catalog
from store import connections, fence


def warnings(session: Session, public_url: str | None) -> dict[str, str]:
    """Sentences by what they are about."""
    found = {}
    if public_url is None:
        remote = [backend.key for backend in catalog().values() if backend.remote]
        if connections.count_remote(session, remote):
            found["public_url"] = (
                "HEADRACE_PUBLIC_URL is not set, so that machines of connected backends cannot reach this control"
                " plane: nothing is rented from them. Set it for the API and for workers, and restart them"
            )
    if fence.read(session).fenced:
        found["fence"] = (
            "this database may be a copy or a backup: nothing is deleted at providers, orphans are only listed."
            " `headrace orphans --confirm` says that it is the one"
        )
    return found
