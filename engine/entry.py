"""The `attendex` command: by the helper at once where it can, else by the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the program was started with, and exit with its status."""
    try:
        sys.exit(_status())
    except KeyboardInterrupt:  # while modules are loaded: nothing was begun
        print("attendex: interrupted", file=sys.stderr)
        sys.exit(130)


def _status() -> int:
    from engine.serving import quick

    try:
        told = quick.told(sys.argv[1:])
        if told is not None:
            told.show()
            return 0
    except Exception as error:
        import cli

        return cli.ended(error)
    import cli

    return cli.run()


if __name__ == "__main__":
    main()
