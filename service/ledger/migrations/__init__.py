"""Steps from one form of the fixed tables to the next, for Alembic."""
