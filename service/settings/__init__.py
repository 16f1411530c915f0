"""The configuration file: as written, checked, and translated into each room's frozen config.

Theory of operation. :mod:`service.settings.load` reads one YAML file into a tree and notes on which line each value
stands; :mod:`service.settings.schema` says what may be written; :mod:`service.settings.checks` looks at what only shows
when parts are held side by side; :mod:`service.settings.build` is the only translator into the configs of the rooms.
Whoever wrote the file gets *all* faults at once, each with its path, its line and what cures it.
Inputs: the text of the file and the environment, which carries secrets and nothing else.
It refuses to know: sockets, workers that run, requests.
"""
