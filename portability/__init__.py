"""Exported C on compilers, processors and systems: `make test-portability`."""
