"""The sink: rows staged by Spark become messages, each exactly once."""
