"""``python -m hybridcache``: the `hybridcache` command, where its script is not on the path."""

import sys

from hybridcache.cli import main

sys.exit(main())
