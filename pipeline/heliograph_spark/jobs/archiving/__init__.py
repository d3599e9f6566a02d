"""The parts of ``archive``: the run of one topic, and the targets to which it writes."""
