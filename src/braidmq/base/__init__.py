"""Words that every room shares: errors, ids, limits. It imports nothing of ours."""
