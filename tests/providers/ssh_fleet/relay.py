"""A bad line: relays a TCP port to a host, and holds what passes for so many seconds each way.

python relay.py ADDRESS PORT TARGET SECONDS
"""

import asyncio
import contextlib
import sys


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    while part := await reader.read(1 << 16):
        loop.call_later(seconds, writer.write, part)
    loop.call_later(seconds, writer.close)


async def main(address: str, port: int, target: str, seconds: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target, 22)
        with contextlib.suppress(OSError):
            await asyncio.gather(_pass_on(reader, back, seconds), _pass_on(there, writer, seconds))

    server = await asyncio.start_server(accept, address, port)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
