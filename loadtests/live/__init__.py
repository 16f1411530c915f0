"""Measurements on running gateways: what they cost, what they hold, what they add.

The question: what does a gateway cost beside the work of the worker behind it, in CPU time, memory, descriptors and
latency, and how does that compare with the peers on the same machine in the same run?

* ``backend`` is a worker that costs almost nothing; ``client`` loads a gateway and prints what the load cost it;
  ``process_cost`` reads CPU time, memory and descriptors of other processes; ``child`` starts and stops them.
* ``peer_install``, ``peer_configs`` and ``peers`` know how each gateway is installed, configured and started.
* ``overhead`` runs all of them in turn; ``overhead_report`` turns the results into a table, a page and a picture.
* ``target`` is one gateway under test, started here or already running; ``streams`` holds thousands of streams open
  on it; ``slow_reader`` refuses to read from it.

Invariants: only processes started here are stopped here; every wait is bounded; a figure that could not be measured
is ``None`` and shown as a dash, never zero.

It refuses to know what a gateway decides: loads here stay far below every limit, so that the cost of the path is seen
and not the cost of refusing.
"""
