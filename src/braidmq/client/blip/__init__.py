"""The client over the Blip strand. It knows no other strand; what they share is in `client`."""
