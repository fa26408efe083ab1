"""Provider anonymity: what an organization that is not told of providers reads instead of their names.

Fields that name a provider, its offer or its machine are left out or emptied; in sentences of ours and of providers the
names are replaced. Regions, addresses and what the workload itself says stay; what a machine said on its console goes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from api.compute.requests import PlacementRequest, refusal
from api.services import Services
from store import jobs, offers
from store.access import Principal
from store.job_records import AttemptRecord, JobRecord

_NAMING = {"provider", "provider_id", "sku"}
_MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class Veil:
    """Over the answers about a job. With `drawn` False it changes nothing."""

    drawn: bool
    providers: frozenset[str] = frozenset()
    attempts: tuple[AttemptRecord, ...] = ()

    def job(self, answer: dict[str, Any], record: JobRecord) -> dict[str, Any]:
        if not self.drawn:
            return answer
        shown = {name: value for name, value in answer.items() if name != "provider"}
        if answer["reason"] is not None:
            shown["reason"] = self._reason(answer["reason"], record.attempts)
        return shown

    def instance(self, answer: dict[str, Any]) -> dict[str, Any]:
        if not self.drawn:
            return answer
        shown = {name: value for name, value in answer.items() if name not in _NAMING}
        shown["provider_id"] = ""
        if answer["provider_id"]:
            # Of pods, containers and virtual machines there are few kinds, and each is of few providers.
            shown["provider_resource_type"] = "instance"
        if "reason" in answer:
            shown["reason"] = self._reason(answer["reason"], self.attempts)
        return shown

    def event(self, answer: dict[str, Any]) -> dict[str, Any]:
        if not self.drawn:
            return answer
        data = {name: value for name, value in answer["data"].items() if name not in _NAMING}
        return {**answer, "data": self._within(data, self.attempts)}

    def log(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Lines of the system only: the workload's are its own."""
        if not self.drawn or answer["source"] != "system":
            return answer
        return {**answer, "message": self._text(answer["message"], self.attempts)}

    def _reason(self, reason: dict[str, Any], attempts: Iterable[AttemptRecord]) -> dict[str, Any]:
        shown: dict[str, Any] = self._within(reason, attempts)
        details = {n: value for n, value in reason.get("details", {}).items() if n not in {"providers", "output"}}
        return {**{name: value for name, value in shown.items() if name != "details"},
                **({"details": self._within(details, attempts)} if details else {})}  # fmt: skip

    def _within(self, value: Any, attempts: Iterable[AttemptRecord]) -> Any:
        """The value with every text in it changed."""
        if isinstance(value, dict):
            return {name: self._within(part, attempts) for name, part in value.items()}
        if isinstance(value, list):
            return [self._within(part, attempts) for part in value]
        return self._text(value, attempts) if isinstance(value, str) else value

    def _text(self, text: str, attempts: Iterable[AttemptRecord]) -> str:
        words = dict.fromkeys(self.providers, "a provider")
        for attempt in attempts:
            words[attempt.provider] = "a provider"
            words[str(attempt.offer.get("provider_sku", ""))] = "an offer"
            words[str((attempt.handle or {}).get("provider_id", ""))] = "its machine"
        known = {word.lower(): told for word, told in words.items() if word}
        if not known:
            return text
        longest_first = "|".join(re.escape(word) for word in sorted(known, key=len, reverse=True))
        pattern = rf"(?<![\w-])(?:{longest_first})(?![\w-])"
        return re.sub(pattern, lambda found: known[found[0].lower()], text, flags=re.IGNORECASE)


def check_choice(principal: Principal, placement: PlacementRequest | None) -> None:
    """Whoever is not told of providers does not choose among them: what may be had from which would name them all.

    Raises:
        InvalidRequest: `placement.providers` is given all the same.
    """
    if placement is not None and placement.providers and not principal.sees_providers:
        raise refusal("placement.providers", "is not for an organization that is not told of providers: leave it out")


_NO_VEIL = Veil(drawn=False)


async def veil_of(services: Services, principal: Principal, job_id: str | None = None) -> Veil:
    """The veil over what the caller reads; with `job_id` also over the instances, events and logs of that job, which
    must be one that the caller may see."""
    if principal.sees_providers:
        return _NO_VEIL

    def read(session: Session) -> Veil:
        attempts = () if job_id is None else jobs.attempts(
            session, job_id, state=None, ascending=True, after=None, limit=_MOST_ATTEMPTS
        )  # fmt: skip
        return Veil(True, offers.providers(session), tuple(attempts))

    return await services.db.read(read)
