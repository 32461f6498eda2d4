"""The runtime around Spark: Java, Python workers, retries while a broker restarts."""
