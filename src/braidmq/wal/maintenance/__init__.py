"""Maintenance of the log: survey, repair, rebuilding indexes, the background scrub."""
