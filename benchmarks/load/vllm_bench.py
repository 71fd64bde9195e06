"""``vllm bench serve`` as a module of its own, in the generators' environment; the arguments are its own.

The ``vllm`` command loads all of vLLM's server before it looks at its arguments, and wants a distribution
of that very name, which its build for processors isn't. This is what it then runs.
"""

from __future__ import annotations

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    main(parser.parse_args())
