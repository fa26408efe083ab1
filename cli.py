"""The `headrace` command."""


def main() -> None:
    """Entry point of the `headrace` command."""
