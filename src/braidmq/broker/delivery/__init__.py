"""What moves messages: windows, hand-outs, queues, followers, and how each delivery ends."""
