"""Decisions without side effects: from resources and observed state to the objects, differences and conditions wanted.

Nothing here does I/O or imports a client (a lint contract says so), so unit tests need neither a cluster nor a broker.
"""
