"""A bad line: relays a TCP port to a host, and holds what passes for so many seconds each way.

python relay.py ADDRESS PORT TARGET SECONDS

Each line of its standard input is another number of seconds, from then on.
"""

import asyncio
import contextlib
import sys


class Line:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """In order, also when the line becomes quicker."""
        loop, due = asyncio.get_running_loop(), 0.0
        while part := await reader.read(1 << 16):
            due = max(due, loop.time() + self.seconds)
            loop.call_at(due, writer.write, part)
        loop.call_at(max(due, loop.time() + self.seconds), writer.close)


async def main(address: str, port: int, target: str, seconds: float) -> None:
    line = Line(seconds)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target, 22)
        with contextlib.suppress(OSError):
            await asyncio.gather(line.carry(reader, back), line.carry(there, writer))

    def change() -> None:
        line.seconds = float(sys.stdin.readline() or line.seconds)

    server = await asyncio.start_server(accept, address, port)
    asyncio.get_running_loop().add_reader(sys.stdin, change)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
