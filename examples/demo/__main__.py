"""`python -m examples.demo`, from the top of the repository."""

import sys

from examples.demo.show import main

sys.exit(main())
