"""Turns whole entries of a topic into Arrow columns, without Spark and without the official client.

:mod:`.entries` takes one entry apart and is the reference, :mod:`.chunks` puts messages together that were sent in
chunks, :mod:`.columns` collects the messages of many entries and :mod:`.values` decodes their contents.
``_batch.pyx`` does the work for each message natively where it is built.
"""
