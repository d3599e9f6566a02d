"""Values in manifests and answers: sizes, durations, names, and how they are written."""
