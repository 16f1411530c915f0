"""The tree keeps to the design, and the checks of that are shown to find faults."""
