"""The fake cloud itself: its bill agrees with the books' arithmetic, and its process outlives those who use it."""

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.money import PriceInterval, UsdPerHour, cost
from providers.base import OfferQuery, ProviderContext
from providers.fake.billing import charge
from providers.fake.control import CloudControl
from providers.fake.provider import FakeProvider
from tests.providers.test_fake_faults import new_spec

DOOMED_WORKER = """
import asyncio, os, pickle, signal, sys
from providers.base import OfferQuery, ProviderContext
from providers.fake.provider import FakeProvider

async def main():
    spec = pickle.loads(bytes.fromhex(sys.argv[2]))
    provider = FakeProvider(ProviderContext("fake", spec.owner_id, "/nonexistent"), sys.argv[1])
    offers = await provider.offers(OfferQuery("cpu-general", 0))
    await provider.create(spec, offers[0])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
START = datetime(2026, 3, 1, tzinfo=UTC)
rates = st.decimals(min_value=0, max_value=100, places=4)
moments = st.integers(min_value=0, max_value=5_000_000).map(lambda ms: START + timedelta(milliseconds=ms))


@given(
    end=moments,
    first=rates,
    changes=st.lists(st.tuples(moments, rates), max_size=4),
    unit_seconds=st.sampled_from([1, 60]),
)
def test_the_clouds_bill_and_the_books_agree_on_every_interval(
    end: datetime, first: Decimal, changes: list[tuple[datetime, Decimal]], unit_seconds: int
) -> None:
    prices = [(START, first), *sorted(changes)]
    ours = cost([PriceInterval(since, UsdPerHour(rate)) for since, rate in prices], START, end, unit_seconds)
    theirs = charge(START, end, [(since, Fraction(rate)) for since, rate in prices], unit_seconds)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-12)


@pytest.fixture
async def process_url() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "providers.fake.server", "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    yield line.decode().split()[-1]
    process.kill()
    await process.wait()


async def test_instances_stay_when_the_process_that_made_them_is_gone(process_url: str) -> None:
    spec, control = new_spec(), CloudControl(process_url)
    await control.script(never_hello=True)
    arguments = [process_url, pickle.dumps(spec).hex()]
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", DOOMED_WORKER, *arguments)
    assert await worker.wait() == -9
    provider = FakeProvider(ProviderContext("fake", spec.owner_id, "/nonexistent"), process_url)
    (handle,) = await provider.find(spec.attempt_id)
    offers = await provider.offers(OfferQuery("cpu-general", 0))
    assert (await provider.create(spec, offers[0])).provider_id == handle.provider_id
    assert len(await control.instances()) == 1
    await provider.close()
    await control.close()
