"""The matrix of rights: every command and every route, asked as every kind of client.

:mod:`.commands` and :mod:`.routes` have the two halves and what each cell needs, :mod:`.shop` what is asked for, on a
broker whose rights are given by REST alone, :mod:`.answers` a broker's answers, and :mod:`.differences` what differs
from the recorded ones of Apache Pulsar. Run as a program (``scripts/rights-of-pulsar``), the package records these.
"""
