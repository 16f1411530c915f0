"""One contract for the real worker and the emulated one."""
