"""The record that bills are made from: an entry per request, durable, chained, added up by the hour, told by the month.

Inputs are settled requests with their verdicts. On the loop an entry costs an append to a list; a thread writes them to
a spool on the local disk, several times a second, each chained to the one before by its hash. A process of its own, the
clerk, drains the spool into a database (SQLite or PostgreSQL), adds rollups up in the same transaction, drops months
that are past their time, and answers questions. What stands in the spool is never lost to a database that is away.

Invariants: an entry is in the database once, however often it is drained; the entries of a chain are numbered without
gaps, and each carries the hash of all before it; a request that was under way when the gateway died becomes an entry
that is judged bad when the gateway starts again. Nothing here knows a prompt, an answer or a key.
"""
