"""Measurements on running gateways: what they cost, what they hold, what they add.

Two questions: what does a gateway cost beside the work of the worker behind it, in CPU time, memory, descriptors and
latency; and which promises does it keep when more is asked of it than its workers can do? Both beside the peers, on the
same machine in the same run.

* ``backend`` is a worker that costs almost nothing; ``client`` loads a gateway and prints what the load cost it;
  ``process_cost`` reads CPU time, memory and descriptors of other processes; ``child`` starts and stops them.
* ``peer_install``, ``peer_configs`` and ``peers`` know how each gateway is installed, configured and started.
* ``overhead`` runs all of them in turn; ``overhead_report`` turns the results into a table, a page and a picture.
* ``target`` is one gateway under test, started here or already running; ``streams`` holds thousands of streams open
  on it; ``slow_reader`` refuses to read from it.
* ``traffic`` says what arrives and when, ``open_loop`` offers it whatever becomes of it (``stream_reader`` reads the
  answers), ``verdicts`` judges every request against its tier's targets, ``ideal`` is the row that nothing can beat.
* ``overload`` offers the same traffic, at and above capacity, to every arm of ``overload_arms`` on emulated workers:
  ``overload_runs`` runs one of them, ``overload_report`` shows what came of all.

Invariants: only processes started here are stopped here; every wait is bounded; a figure that could not be measured
is ``None`` and shown as a dash, never zero.

It refuses to know how a gateway decides. The loads for the cost of the path stay far below every limit, so that the
cost of refusing is not seen; the overload test sees nothing but what clients see.
"""
