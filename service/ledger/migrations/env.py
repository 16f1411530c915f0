"""Run by Alembic for each step: on the connection that the clerk has opened."""

from alembic import context

from service.ledger.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
