"""${message}. There is no way back but the backup from before."""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${"\n".join(line for line in upgrades.splitlines() if "###" not in line).strip()}
