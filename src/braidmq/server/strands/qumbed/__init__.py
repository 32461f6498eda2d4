"""The Qumbed strand on the server: QUIC listener, streams, deliveries, discovery."""
