"""Prefix cache for hybrid (attention + recurrent) language models, and replay of traces through it."""

__version__ = "0.1.0"
