"""Lists of offers and quotes, out of a cache of 20,000 offers, by HTTP."""

import time
from datetime import timedelta
from decimal import Decimal

from bench.client import Client
from bench.report import Row, milliseconds, percentile
from bench.stack import Stack, running_stack
from domain.catalog import CATALOG, Gpu
from domain.clock import utc_now
from domain.offers import Capabilities, Offer
from store.db import Database
from store.offers import Snapshot, replace

OFFERS = 20_000
REQUESTS = 1_000
_CONNECTIONS = ("bench-a", "bench-b")
_FLOOR_SECONDS = 0.030


async def offers() -> list[Row]:
    """Filtered pages of 50, first and later ones, one after the other; and quotes of a hardware with many offers."""
    with running_stack(HEADRACE_LOCAL_ENGINE="sandbox") as stack:
        names = _fill(stack)
        async with Client(stack) as client:
            filters = [
                f"accelerator={names[0]}",
                f"accelerator={names[1]}&gpu_count=2&available=true",
                "region=region-7",
                "available=true&interconnect=pcie",
                "provider=bench-b",
                "interconnect=infinity_fabric&region=region-3",
            ]
            paths = [f"/catalog/offers?limit=50&{wanted}" for wanted in filters]
            for path in paths[:]:
                cursor = (await client.get(path))["next_cursor"]
                paths += [f"{path}&cursor={cursor}"] if cursor else []
            lists, quotes = [], []
            for number in range(REQUESTS):
                began = time.perf_counter()
                await client.get_raw(paths[number % len(paths)])
                lists.append(time.perf_counter() - began)
            for number in range(REQUESTS // 5):
                body = _quote(names[number % len(names)])
                began = time.perf_counter()
                await client.request("POST", "/catalog/quotes", body)
                quotes.append(time.perf_counter() - began)
    worst = percentile(lists, 99)
    return [
        Row(f"list_compute_offers(50) of {OFFERS:,}, filtered", "p99 <= 30 ms", f"{milliseconds(lists)} (n={REQUESTS})",
            worst <= _FLOOR_SECONDS),
        Row(f"a quote over {OFFERS:,} offers", "-", f"{milliseconds(quotes)} (n={len(quotes)})", None),
    ]  # fmt: skip


def _fill(stack: Stack) -> list[str]:
    """As two polls would; answers the names of the accelerators that are offered."""
    gpus = [entry for entry in CATALOG if isinstance(entry, Gpu)]
    # Valid for longer than the run, however slow the machine is.
    now = utc_now() + timedelta(minutes=5)
    database = Database(f"sqlite:///{stack.data_dir / 'headrace.db'}")
    try:
        for number, connection in enumerate(_CONNECTIONS):
            share = range(number, OFFERS, len(_CONNECTIONS))
            snapshot = Snapshot.of(_offer(n, connection, gpus[n % len(gpus)]) for n in share)
            database.run_write(
                lambda s, c=connection, found=snapshot: replace(  # type: ignore[misc]
                    s, c, c, Capabilities(ssh=True, http_ports=True, tcp_ports=True), found, 1, now
                )
            )
    finally:
        database.close()
    return [gpu.name for gpu in gpus]


def _offer(number: int, connection: str, gpu: Gpu) -> Offer:
    return Offer(
        id=f"offer-{number:06d}",
        provider=connection,
        connection_id=connection,
        provider_sku=f"sku-{number}",
        accelerator=gpu.name,
        gpu_count=gpu.gpu_counts[number % len(gpu.gpu_counts)],
        gpu_memory_gb=gpu.memory_gb,
        vcpus=8 + number % 56,
        memory_gb=64,
        ephemeral_disk_gb=500,
        interconnect=gpu.interconnects[number % len(gpu.interconnects)],
        region=f"region-{number % 20}",
        price_usd_hr=Decimal(number % 900 + 20) / 100,
        available=number % 3 != 0,
        observed_at=utc_now(),
    )


def _quote(accelerator: str) -> bytes:
    compute = f'{{"accelerator": "{accelerator}", "gpu_count": 1, "ephemeral_disk_gb": 100}}'
    return f'{{"resource_type": "job", "compute": {compute}, "container": {{"image": "app"}}}}'.encode()
