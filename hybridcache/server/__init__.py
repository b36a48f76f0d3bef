"""The HTTP server: knows bodies and streams, and the Worker; not the cache's insides."""
