"""Host keys: the first one that a host shows is pinned; another one later is refused."""


class HostKeysInMemory:
    """Pins of a process, for those who keep them elsewhere or not at all: `known` is what to keep."""

    def __init__(self, known: dict[str, str] | None = None) -> None:
        self.known = dict(known or {})

    async def pinned(self, address: str) -> str | None:
        return self.known.get(address)

    async def pin(self, address: str, key: str) -> str:
        return self.known.setdefault(address, key)
