"""The base of the core: errors, records, names, histograms, and small data structures."""
