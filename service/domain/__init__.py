"""The vocabulary every room shares: frozen values, standard library only.

Question answered: what are the things we talk about? A request, a permit, a worker's load, the events that happen,
the commands that follow, and the one outcome in which each request ends. Nothing here decides, reads a clock or does
input or output. Moments (``*_at``) are monotonic seconds of one process; lengths (``*_s``) are seconds.
"""
