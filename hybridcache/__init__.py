"""Prefix cache for hybrid (attention + recurrent) language models, and the tools that replay traces through it."""

__version__ = "0.1.0"
