"""Tables that pipelines write: layout, staging, commit, compaction, Delta."""
