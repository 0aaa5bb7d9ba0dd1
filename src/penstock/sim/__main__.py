"""Entry point of `python -m penstock.sim`."""

import sys

from penstock.sim.run import main

sys.exit(main())
