"""What this machine has promised: a small record on disk for each attempt, from `create` until it is gone.

The record is what makes `create` repeatable, and what a start looks at last: a workload whose record is gone was
terminated meanwhile and must not run.
"""

import contextlib
import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from domain.errors import NoCapacity
from domain.ids import ATTEMPT_PATTERN, AttemptId
from domain.spec import Frozen

_RECORD = "record.json"
_BEGUN = "begun"


class Record(Frozen):
    """One reserved attempt."""

    attempt_id: AttemptId
    owner_id: str
    job_id: str
    org_id: str
    name: str
    engine: str
    accelerator: str
    gpu_count: int
    created_at: datetime


def reserved_gpus(records: Iterable[Record]) -> Counter[str]:
    """How many GPUs of each model are promised."""
    total: Counter[str] = Counter()
    for record in records:
        total[record.accelerator] += record.gpu_count
    return total


class Records:
    """The directory of reservations, `local/` in the data directory: one sub-directory per attempt, 0700."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def directory(self, attempt_id: AttemptId) -> Path:
        """The attempt's own directory.

        Raises:
            ValueError: the id is not one of ours; it must never become a path.
        """
        if not ATTEMPT_PATTERN.match(attempt_id):
            raise ValueError(f"{attempt_id!r} is not an attempt id")
        return self.root / attempt_id

    def reserve(self, record: Record, *, share_between_organizations: bool, gpus: int) -> Record:
        """Writes the record, or returns the one that is there. `gpus` is how many of its accelerator exist.

        Raises:
            NoCapacity: the GPUs are reserved, or the machine serves another organization and may not be shared.
        """
        with self._locked():
            existing = self.read(record.attempt_id)
            if existing is not None:
                return existing
            held = self.all()
            others = [other for other in held if other.org_id != record.org_id]
            if others and not share_between_organizations:
                raise NoCapacity(
                    f"{len(others)} jobs of another organization run on this machine; "
                    "HEADRACE_LOCAL_MULTI_TENANT=true lets organizations share it"
                )
            free = gpus - reserved_gpus(held)[record.accelerator]
            if record.gpu_count > free:
                raise NoCapacity(f"{record.gpu_count} {record.accelerator} wanted, {free} of {gpus} are free")
            directory = self.directory(record.attempt_id)
            directory.mkdir(mode=0o700, exist_ok=True)
            draft = directory / f".{_RECORD}"
            draft.write_text(record.model_dump_json())
            draft.replace(directory / _RECORD)
            return record

    def read(self, attempt_id: AttemptId) -> Record | None:
        """The record, or None when there is none (never reserved, or removed)."""
        try:
            return Record.model_validate_json((self.directory(attempt_id) / _RECORD).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None

    def all(self) -> list[Record]:
        """Every reservation; directories without a readable record hold nothing."""
        names = sorted(os.listdir(self.root))
        found = [self.read(AttemptId(name)) for name in names if ATTEMPT_PATTERN.match(name)]
        return [record for record in found if record is not None]

    def mark_begun(self, attempt_id: AttemptId) -> None:
        """From here on an attempt without a workload has lost it, rather than not been given it yet."""
        with contextlib.suppress(FileNotFoundError):  # terminated, and wiped, meanwhile
            (self.directory(attempt_id) / _BEGUN).touch()

    def has_begun(self, attempt_id: AttemptId) -> bool:
        """Whether its workload was started once."""
        return (self.directory(attempt_id) / _BEGUN).exists()

    def withdraw(self, attempt_id: AttemptId) -> None:
        """Removes the record and nothing else: from here on no start of the attempt goes through."""
        (self.directory(attempt_id) / _RECORD).unlink(missing_ok=True)

    def wipe(self, attempt_id: AttemptId) -> None:
        """Removes the attempt's directory with everything in it."""
        shutil.rmtree(self.directory(attempt_id), ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Between processes: two workers of one data directory never reserve at once."""
        with (self.root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
