"""`rollup`: readings by sensor and minute."""
