"""What happens to a message. No socket, no file, no clock: time is an argument.

:class:`braidmq.broker.broker.Broker` joins the other files; each of them knows one thing.
"""
