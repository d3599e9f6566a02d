"""Requests and answers of every route: checked parameters, errors, the description of an operation."""
