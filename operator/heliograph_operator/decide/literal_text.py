"""Texts of people's specs in the arguments and variables of a container."""

from __future__ import annotations


def literal(text: str) -> str:
    """Return a text as a container is to be given it.

    Kubernetes replaces ``$(NAME)`` by the variable of that name, which may be a key of a Secret: people who may not
    read the Secret could send it anywhere, or find it in an error message.
    """
    return text.replace("$", "$$")
