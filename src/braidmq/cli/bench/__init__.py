"""`braidmq bench`: load, measurement, report and plot."""
