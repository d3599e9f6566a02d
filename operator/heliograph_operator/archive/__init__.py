"""The archive of a Topic: keeps its CronJob in step with the spec and reports the outcome of its runs."""
