"""Writes revisions by comparing the tables with the history:

python -m store.migrations "Add a column"     the next revision
python -m store.migrations                    the first one anew, as long as nothing was released
"""

import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.script import ScriptDirectory

from store.db import Database
from store.schema import migrations, upgrade

FIRST = "Create the tables"


def write_revision(message: str) -> None:
    """Writes the file of the revision that follows the newest one."""
    config = migrations()
    config.set_section_option("post_write_hooks", "hooks", "format")
    for option, value in {"type": "module", "module": "ruff", "options": "format REVISION_SCRIPT_FILENAME"}.items():
        config.set_section_option("post_write_hooks", f"format.{option}", value)
    newest = ScriptDirectory.from_config(config).get_current_head()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/scratch.db")
        upgrade(database)
        with database.engine.begin() as connection:
            config.attributes["connection"] = connection
            command.revision(config, message, autogenerate=True, rev_id=f"{int(newest or '0') + 1:04d}")
        database.close()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        for revision in (Path(__file__).parent / "versions").glob("0*.py"):
            revision.unlink()
    write_revision(sys.argv[1] if len(sys.argv) > 1 else FIRST)
