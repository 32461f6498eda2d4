"""From verified bytes to columns: headers, typed payloads, unsealing."""
