"""The blocking client; see `braidmq.client.sync` for how to use it."""

from braidmq.client.sync import Client, Message, Subscription, connect

__all__ = ["Client", "Message", "Subscription", "connect"]
