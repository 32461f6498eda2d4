"""What every room shares: errors, ids, limits, strict JSON. Imports no other room."""
