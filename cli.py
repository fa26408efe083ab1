"""The `headrace` command."""

import sys
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; an error is told on stderr, in one line and its hints."""
    from commands.exits import CommandError, ExitCode
    from commands.render import report
    from commands.root import app

    try:
        app(list(arguments), prog_name="headrace")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except CommandError as error:
        report(error)
        return error.code
    return ExitCode.OK


def main() -> None:
    """Entry point of the `headrace` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
