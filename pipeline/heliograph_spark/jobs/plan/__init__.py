"""Decisions and counts of jobs, without Spark."""
