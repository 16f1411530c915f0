"""The fixed tables: chains, terms, months and rollups."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "chains",
        sa.Column("chain", sa.String(32), primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("dropped_seq", sa.BigInteger, nullable=False),
        sa.Column("dropped_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("drained_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "terms",
        sa.Column("config_hash", sa.String(64), primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("since_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "months",
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("dropped_us", sa.BigInteger),
    )
    op.create_table(
        "rollups",
        sa.Column("chain", sa.String(32), primary_key=True),
        sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("tier", sa.String(32), primary_key=True),
        sa.Column("size_class", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("met", sa.BigInteger, nullable=False),
        sa.Column("missed", sa.BigInteger, nullable=False),
        sa.Column("excluded", sa.BigInteger, nullable=False),
        sa.Column("sums", sa.Text, nullable=False),
    )
    op.create_index("rollups_by_tenant", "rollups", ["tenant", "tier", "hour"])


def downgrade() -> None:
    """Take them away, with everything in them."""
    for name in ("rollups", "months", "terms", "chains"):
        op.drop_table(name)
