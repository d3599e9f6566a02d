"""Prints the answers of a broker to every question."""

from __future__ import annotations

import json
import sys

from . import commands, lists, messages, positions, schemas
from .place import QUESTIONS, answers_of

__all__ = ["commands", "lists", "messages", "positions", "schemas"]

if __name__ == "__main__":
    service_url, http_url, *names = sys.argv[1:]
    answers = {name: answers_of(service_url, http_url, name) for name in names or QUESTIONS}
    print(json.dumps(answers, indent=1, ensure_ascii=False, sort_keys=True))
