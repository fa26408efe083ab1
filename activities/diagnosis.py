"""What an instance that does not come up says on its console or in its log: kept for the reason of the failure."""

import asyncio

from sqlmodel import Session

from activities.context import Context, log
from domain.errors import ProviderError
from domain.ids import AttemptId
from domain.masking import mask
from providers.base import Handle, Provider
from store import attempts, launch_secrets
from store.tables import Instance, Job
from store.vault import VaultError

CHARACTERS = 2_000
"""The last of them."""
_SECONDS = 15
"""Longer than a page of an endless log takes, which a backend ends after 10."""


async def last_words(context: Context, provider: Provider, instance: Instance) -> str:
    """The end of its output, masked, and kept on its row; empty where its provider shows none, or none in time."""
    if instance.handle is None:
        return ""
    try:
        async with asyncio.timeout(_SECONDS):
            page = await provider.logs(Handle.model_validate(instance.handle), None)
    except (ProviderError, TimeoutError) as error:
        log.info("no_diagnosis", attempt_id=instance.id, error=type(error).__name__)
        return ""

    def keep(session: Session) -> str:
        job = session.get_one(Job, instance.job_id)
        row = attempts.locked(session, instance.id)
        secrets = {
            context.bootstrap_token(AttemptId(instance.id)).get_secret_value(),
            *launch_secrets.known(session, context.vault, row),
            *launch_secrets.pull_passwords(session, context.vault, job),
        }
        # Masked before it is cut: a part of a secret is no secret that is known.
        # A machine may say what is no character, and what no database takes.
        text = page.text.replace("\0", "").encode(errors="replace").decode()
        words = mask(text, secrets).strip()[-CHARACTERS:]
        if words:
            row.last_words = words
            session.add(row)
        return words

    try:
        return await context.db.write(keep)
    except VaultError as error:
        # What cannot be masked is not kept, and is no reason to fail otherwise.
        log.warning("diagnosis_not_masked", attempt_id=instance.id, error=str(error))
        return ""
