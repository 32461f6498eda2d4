"""The daemon: configuration, listeners, durability, time. It joins the other rooms."""
