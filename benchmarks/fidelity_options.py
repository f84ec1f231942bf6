"""Command line of the benchmarks that need a real vLLM."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.fidelity_servers import SEQS_MAX
from support.vllm_cpu import missing


def parse_options(
    name: str,
    description: str | None,
    arguments: Sequence[str] | None,
    *,
    requests: int,
    more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> argparse.Namespace:
    """Parse the command line.

    Args:
        name: Name of the benchmark; its result goes to build/NAME.json.
        description: Text of --help.
        arguments: Arguments without the program's name; None for those of the process.
        requests: Default number of requests per run.
        more: Adds options of this benchmark only.

    Returns:
        Namespace with quick, rounds, requests, seed, profile, check, out, and the options of `more`.

    Raises:
        SystemExit: The arguments are invalid, or vLLM is not installed.
    """
    parser = argparse.ArgumentParser(
        prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round, under 2 minutes")
    parser.add_argument("--rounds", type=int, help="rounds, each with its own seed (default 3)")
    parser.add_argument("--requests", type=int, help=f"requests per run (default {requests})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round (default 1)")
    parser.add_argument("--profile", type=Path, help="profile to use instead of measuring one")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a criterion is not met")
    parser.add_argument("--out", type=Path, default=Path(f"build/{name}.json"), help="[%(default)s]")
    more(parser)
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    if options.requests is None:
        options.requests = 5 * SEQS_MAX if options.quick else requests
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; expected 1 or more")
    if options.requests <= 2 * SEQS_MAX:
        parser.error(f"--requests is {options.requests}; expected more than {2 * SEQS_MAX}")
    if options.profile is not None and not options.profile.is_file():
        parser.error(f"--profile is {options.profile}; expected a file")
    if reason := missing():
        parser.error(reason)
    return options
