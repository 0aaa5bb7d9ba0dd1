"""`python -m tools.fuzz --target NAME --seconds N`: runs one target and fails if it found something.

libFuzzer ends its process when the time is up or it has a finding. The input of a finding is kept in
.cache/fuzz/NAME-*, and `--replay FILE` runs it again with a Python traceback.
"""

import argparse
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

CACHE = Path(".cache/fuzz")
# libFuzzer's own time limit for one input; far above what any takes, so that a pause of the machine
# is no finding.
INPUT_SECONDS_MAX = 10
MEMORY_MIB_MAX = 2048
INPUT_BYTES_MAX = 4096


def main() -> int:
    options = _options()
    if find_spec("atheris") is None:
        print("skipped: atheris is not installed; it comes with the extra `fuzz`")
        return 0
    import atheris

    # Before the product is imported, so that its branches are seen.
    with atheris.instrument_imports(include=["penstock"]):
        from tools.fuzz.targets import TARGETS
    if options.list:
        print("\n".join(TARGETS))
        return 0
    if options.target not in TARGETS:
        print(f"no target is called {options.target!r}; there are: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    target = TARGETS[options.target]
    if options.replay:
        target.attempt(Path(options.replay).read_bytes())
        return 0
    corpus = CACHE / options.target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    flags = [
        str(corpus),
        f"-max_total_time={options.seconds}",
        f"-timeout={INPUT_SECONDS_MAX}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={CACHE / options.target}-",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    atheris.Setup([sys.argv[0], *flags], target.attempt)
    atheris.Fuzz()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="", metavar="NAME")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--replay", metavar="FILE", help="try one input")
    parser.add_argument("--list", action="store_true", help="the names of the targets")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
