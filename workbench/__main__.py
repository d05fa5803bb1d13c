"""`python -m workbench`, and the command `workbench`."""

import signal


def main() -> None:
    """Run the command line and exit. Ctrl-C ends it without a word as long as nothing is to be put right."""
    if interrupts := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from workbench.cli import main

    main(interrupts=interrupts)


if __name__ == "__main__":
    main()
