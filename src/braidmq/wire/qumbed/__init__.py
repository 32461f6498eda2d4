"""The Qumbed strand: typed topics and sealed payloads in JSON frames over QUIC streams."""
