"""`python -m benchmarks.overhead`."""

import sys

from benchmarks.overhead.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
