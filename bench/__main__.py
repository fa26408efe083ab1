"""Measures every row of the table in docs/performance.md, on stacks of its own.

python -m bench [NAME ...] [--engine sandbox --engine podman --engine podman-none] [--runs 30]
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence

from bench import api, crowd, flood, ledger, local, logs, offers, start
from bench.engines import Engine, engines
from bench.report import HEADER, Row, conditions

NAMES = ("start", "echo", "burst", "terminate", "create", "list", "offers", "usage", "flood", "pages", "crowd", "logs")
ENGINES = ("sandbox", "podman", "podman-none")


async def measure(name: str, found: Sequence[Engine], runs: int) -> AsyncIterator[list[Row]]:
    """The rows of one measurement, as they come."""
    if name == "start":
        yield [await asyncio.to_thread(start.start, runs=5)]
    elif name == "echo":
        for engine in found:
            yield await local.echo(engine, runs)
    elif name == "burst":
        for engine in found:
            yield await local.burst(engine, rounds=3)
    elif name == "terminate":
        for engine in found:
            yield await local.terminate(engine, runs)
    elif name == "create":
        yield await api.create()
    elif name == "list":
        yield await api.listing()
    elif name == "offers":
        yield await offers.offers()
    elif name == "usage":
        yield await ledger.report()
    elif name == "flood":
        yield await flood.flood(found[0])
    elif name == "pages":
        yield await flood.pages(found[0])
    elif name == "crowd":
        yield await crowd.crowd()
    elif name == "logs":
        yield await logs.rows()


async def main() -> int:
    """Exit status 1 when a floor is not met."""
    this = asyncio.current_task()
    assert this is not None
    # Stopped from outside, it stops the stack that it has started.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures; see docs/performance.md.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="may be repeated; all that work by default")
    parser.add_argument("--runs", type=int, default=30, help="of what is measured one after the other")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    found = await engines(arguments.engine or ENGINES)
    print(f"{conditions()}\n\n{HEADER}", flush=True)
    met = True
    for name in arguments.names or NAMES:
        async for rows in measure(name, found, arguments.runs):
            for row in rows:
                print(row.markdown(), flush=True)
                met = met and row.met is not False
    print(f"\n{conditions()}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
