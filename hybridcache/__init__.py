"""Prefix cache for hybrid (attention + recurrent) language models, and replay of traces through it."""

import sys

__version__ = "0.1.0"

if sys.argv[:1] == ["-m"]:
    # What Python says while it looks for the module of ``python -m hybridcache...``: before what takes long
    # is imported.
    from hybridcache.interrupt import say_interrupted

    say_interrupted()
