"""Turns Arrow columns into entries as a broker stores them, without Spark.

:mod:`.messages` says which columns messages have, :mod:`.entries` encodes them and is the reference, and :mod:`.frames`
makes what is sent of them: batches, messages alone and chunks. ``_entries.pyx`` does the work for each message natively
where it is built, and encodes the records of :mod:`.records`.
"""
