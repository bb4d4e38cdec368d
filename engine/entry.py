"""The `attendex` command: by the helper at once where it can, else by the command line."""

from __future__ import annotations

import sys

from engine.serving import quick


def main() -> None:
    """Run the command that the program was started with, and exit with its status."""
    try:
        told = quick.told(sys.argv[1:])
        if told is not None:
            told.show()
            sys.exit(0)
    except (Exception, KeyboardInterrupt) as error:
        import cli

        sys.exit(cli.ended(error))
    import cli

    cli.main()


if __name__ == "__main__":
    main()
