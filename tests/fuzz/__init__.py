"""Fuzzing: readers of foreign bytes get inputs that a coverage-guided fuzzer makes (docs/fuzzing.md).

A :mod:`.target` is a function of bytes that raises nothing unless it has found a defect; :mod:`.targets` lists them.
The :mod:`.worker` runs one with atheris in an environment of its own, the :mod:`.command` starts workers by
:mod:`.run`, and :mod:`.corpus` keeps inputs that together reach everything that was reached. Only the worker needs
atheris.
"""
