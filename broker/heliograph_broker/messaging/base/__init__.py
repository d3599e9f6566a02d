"""What every part of the core rests on: errors, records, names, histograms, and small data structures."""
