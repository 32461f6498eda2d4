"""The blocking facade over the client library; `braidmq.client.sync` says how it is used."""

from braidmq.client.sync import Client, Message, Subscription, connect

__all__ = ["Client", "Message", "Subscription", "connect"]
