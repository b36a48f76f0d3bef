"""Hydra configuration, found by Hydra as `pkg://hybridcache.conf`."""
